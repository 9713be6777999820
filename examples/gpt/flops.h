#pragma once
#include <cstdint>

#include "config.h"

namespace gpt {

/// Parameters that take part in matrix products: every projection, and the output head even where it is tied.
/// Embedding look-ups, position tables, norms and biases do not count.
std::int64_t matrix_parameters(const GptConfig& config);

/// Model FLOPs of one token's forward and backward: 6 N + 12 L D T, with N = matrix_parameters. The second term is
/// attention's two products over the whole sequence; that causality halves them is not deducted, nor is recomputation
/// added.
double model_flops_per_token(const GptConfig& config);

}  // namespace gpt
