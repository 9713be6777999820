#pragma once
#include <string>

#include "gpu/gpu_calls.h"

namespace bellows {

/// GpuCalls::nccl: libnccl.so.2, opened at the first call.
const NcclCalls* open_nccl(std::string* why);

}  // namespace bellows
