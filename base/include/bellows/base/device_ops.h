#pragma once
#include <span>

#include "bellows/base/device.h"
#include "bellows/base/dtype.h"

namespace bellows {

// Element-wise work on a stream. CPU and CUDA compile the same element functions, so the bits are the same.
// Spans are addresses of the stream's device.

/// out[i] = bf16(in[i]), rounded to nearest even. Spans of equal length.
void cast_to_bf16(Stream& stream, std::span<bf16> out, std::span<const float> in);

/// out[i] = the sum over lanes of lanes[l][i] in the order of the lane tree. At most kMaxLanes lanes, each as long as
/// out.
inline constexpr std::size_t kMaxLanes = 256;
void lane_sum(Stream& stream, std::span<float> out, std::span<const float* const> lanes);

}  // namespace bellows
