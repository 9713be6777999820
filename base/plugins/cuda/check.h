#pragma once
#include <cuda_runtime_api.h>

#include <string>

#include "bellows/base/device.h"

namespace bellows {

/// Throws DeviceError naming the call unless `code` is success.
inline void cuda_check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  throw DeviceError(std::string(call) + " failed: " + cudaGetErrorString(code) + " (" + std::to_string(code) + ")");
}

}  // namespace bellows
