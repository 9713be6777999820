#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bellows/base/dtype.h"
#include "bellows/base/thread_pool.h"
#include "config.h"

namespace gpt {

/// Text as the model goes on with it.
struct SampleOptions {
  std::uint64_t seed = 1;
  int count = 0;             ///< tokens to write
  double temperature = 0.8;  ///< 0: always the likeliest token
};

/// Token number `draw` of a sample, from its logits: a pure function of them and of (seed, draw).
std::int32_t choose_token(std::span<const float> logits, double temperature, std::uint64_t seed, std::uint64_t draw);

/// Goes on from `prompt` (at least one token) and returns the new tokens alone. `params`: the whole model in the
/// compute type `precision`, units one after another in GptLayout's order. Every token costs the forward pass of one
/// block of rows; where the text outgrows the model's sequence, the newest half of it is read again.
std::vector<std::int32_t> sample_tokens(const GptConfig& config, bellows::DType precision, const void* params,
                                        bellows::ThreadPool& pool, std::span<const std::int32_t> prompt,
                                        const SampleOptions& options);

/// The same for a model of bytes, starting from a line's end.
std::string sample(const GptConfig& config, bellows::DType precision, const void* params, bellows::ThreadPool& pool,
                   std::uint64_t seed, int count, double temperature);

}  // namespace gpt
