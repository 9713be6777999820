#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "bellows/base/device.h"
#include "bellows/base/dtype.h"

namespace bellows {

// Between the rooms and `libbellows_cuda.so`, which holds every CUDA kernel. The plugin is built from the same sources
// as what loads it and refuses any other version. Calls enqueue on `stream`, a cudaStream_t, and throw DeviceError.

/// What the plugin gives to base/.
struct CudaPlugin {
  static constexpr int kVersion = 1;
  int version;
  /// All devices, living as long as the plugin; with none, `why` says in one line what is missing.
  std::vector<Device*> (*devices)(std::string* why);
  void (*cast_to_bf16)(void* stream, bf16* out, const float* in, std::size_t n);
  void (*lane_sum)(void* stream, float* out, const float* const* lanes, int lane_count, std::size_t n);
};
/// The one symbol that base/ looks up first: `extern "C" const CudaPlugin* bellows_cuda_plugin()`.
using CudaPluginEntry = const CudaPlugin* (*)();

/// The plugin or why there is none; loaded at the first call.
const Result<const CudaPlugin*>& cuda_plugin();

/// A symbol that another room keeps in the plugin. CHECKs that the plugin is loaded and has it.
void* cuda_symbol(const char* name);

}  // namespace bellows
