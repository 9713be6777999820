#pragma once
#include <cstddef>

#include "bellows/base/device.h"
#include "gpu/device_fold.h"

namespace bellows {

/// GpuCalls::fold.
void cuda_tree_sum(Stream& stream, const DeviceFold& fold, DType dtype, const std::byte* const* sources,
                   std::byte* const* results, std::size_t count);

}  // namespace bellows
