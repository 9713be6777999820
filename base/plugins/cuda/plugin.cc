#include "bellows/base/cuda_plugin.h"
#include "device.h"
#include "kernels.h"

extern "C" __attribute__((visibility("default"))) const bellows::CudaPlugin* bellows_cuda_plugin() {
  static const bellows::CudaPlugin plugin = {bellows::CudaPlugin::kVersion, bellows::cuda_plugin_devices,
                                             bellows::cuda_cast_to_bf16, bellows::cuda_lane_sum};
  return &plugin;
}
