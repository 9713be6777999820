// What comm/ keeps in libbellows_cuda.so.
#include <cstring>

#include "check.h"
#include "gpu/gpu_calls.h"
#include "nccl_library.h"
#include "tree_sum.h"

namespace bellows {
namespace {

void use(const Device& device) { cuda_check(cudaSetDevice(device.index()), "cudaSetDevice"); }

std::string obstacle() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess) return count > 0 ? "" : "the NVIDIA driver finds no GPU on this host";
  cudaGetLastError();
  const std::string said = std::string(" (cudaGetDeviceCount: ") + cudaGetErrorString(code) + ")";
  if (code == cudaErrorInsufficientDriver) return "no NVIDIA driver on this host, or one too old for this build" + said;
  if (code == cudaErrorNoDevice) return "the NVIDIA driver finds no GPU on this host" + said;
  return "the GPUs of this host cannot be used" + said;
}

std::string share(Device& device, const std::byte* memory) {
  use(device);
  cudaIpcMemHandle_t handle;
  cuda_check(cudaIpcGetMemHandle(&handle, const_cast<std::byte*>(memory)), "cudaIpcGetMemHandle");
  return std::string(reinterpret_cast<const char*>(&handle), sizeof handle);
}

std::byte* open(Device& reader, const std::string& name) {
  use(reader);
  cudaIpcMemHandle_t handle;
  if (name.size() != sizeof handle) throw DeviceError("a handle of device memory has the wrong size");
  std::memcpy(&handle, name.data(), sizeof handle);
  void* memory = nullptr;
  cuda_check(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
  return static_cast<std::byte*>(memory);
}

void close(Device& reader, std::byte* memory) {
  use(reader);
  cuda_check(cudaIpcCloseMemHandle(memory), "cudaIpcCloseMemHandle");
}

void reach(Device& reader, int other) {
  use(reader);
  const cudaError_t code = cudaDeviceEnablePeerAccess(other, 0);
  if (code == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return;
  }
  cuda_check(code, "cudaDeviceEnablePeerAccess");
}

}  // namespace
}  // namespace bellows

extern "C" __attribute__((visibility("default"))) const bellows::GpuCalls* bellows_cuda_comm() {
  static constexpr bellows::GpuCalls calls = {bellows::GpuCalls::kVersion,
                                              bellows::obstacle,
                                              bellows::cuda_tree_sum,
                                              bellows::share,
                                              bellows::open,
                                              bellows::close,
                                              bellows::reach,
                                              bellows::open_nccl};
  return &calls;
}
