#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "bellows/base/dtype.h"

namespace bellows {

/// Sum of squares of one fixed chunk, in double. The order inside is fixed (32 interleaved partial sums, then a tree),
/// so the value depends on the elements alone. Counts non-finite elements into `*non_finite` (added).
double sum_of_squares(std::span<const float> chunk, std::uint64_t* non_finite);

/// Adds partial sums, one per chunk in canonical order, by a fixed balanced tree.
double fold_sums(std::span<const double> partials);

/// The factor that brings `norm` down to `max_norm`: 1 if max_norm <= 0 or norm <= max_norm. `norm` must be finite.
float clip_coefficient(double norm, double max_norm);

}  // namespace bellows
