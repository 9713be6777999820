#pragma once
#include <cstddef>

#include "bellows/base/dtype.h"

namespace bellows {

void cuda_cast_to_bf16(void* stream, bf16* out, const float* in, std::size_t n);
void cuda_lane_sum(void* stream, float* out, const float* const* lanes, int lane_count, std::size_t n);

}  // namespace bellows
