#include "device.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>

#include "bellows/base/error.h"
#include "bellows/base/memory.h"
#include "check.h"

namespace bellows {
namespace {

// The runtime's current device is a matter of the calling thread: every call that depends on it says which one it
// means.
void use(int device) { cuda_check(cudaSetDevice(device), "cudaSetDevice"); }

struct DeviceStorage final : Buffer::Storage {
  explicit DeviceStorage(void* p) : memory(p) {}
  ~DeviceStorage() override { cudaFree(memory); }
  void* memory;
};

struct StagingStorage final : Buffer::Storage {
  explicit StagingStorage(void* p) : memory(p) {}
  ~StagingStorage() override { cudaFreeHost(memory); }
  void* memory;
};

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(int device) {
    use(device);
    cuda_check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync), "cudaEventCreate");
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool done() const override {
    const cudaError_t code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) return false;
    cuda_check(code, "cudaEventQuery");
    return true;
  }
  void synchronize() override { cuda_check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaStream final : public Stream {
 public:
  explicit CudaStream(Device& device) : device_(device) {
    use(device.index());
    cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~CudaStream() override { cudaStreamDestroy(stream_); }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  Device& device() const override { return device_; }
  void record(Event& event) override { cuda_check(cudaEventRecord(native_event(event), stream_), "cudaEventRecord"); }
  void wait(Event& event) override {
    cuda_check(cudaStreamWaitEvent(stream_, native_event(event), 0), "cudaStreamWaitEvent");
  }
  void synchronize() override { cuda_check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }
  void* native() const override { return stream_; }

 private:
  // Only events of this plugin can be ordered against its streams.
  static cudaEvent_t native_event(Event& event) { return dynamic_cast<CudaEvent&>(event).get(); }
  void do_copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
  }
  void do_fill(std::byte* to, std::byte value, std::size_t bytes) override {
    cuda_check(cudaMemsetAsync(to, std::to_integer<int>(value), bytes, stream_), "cudaMemsetAsync");
  }

  Device& device_;
  cudaStream_t stream_ = nullptr;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, std::string name) : index_(index), name_(std::move(name)) {}

  Kind kind() const override { return Kind::kCuda; }
  int index() const override { return index_; }
  std::string name() const override { return name_; }
  Memory memory() const override {
    use(index_);
    Memory memory;
    cuda_check(cudaMemGetInfo(&memory.free, &memory.total), "cudaMemGetInfo");
    return memory;
  }

  Buffer allocate(std::size_t bytes) override {
    if (bytes == 0) return Buffer(*this, Buffer::Place::kDevice, nullptr, 0, nullptr);
    use(index_);
    void* data = nullptr;
    allocated(cudaMalloc(&data, bytes), bytes, "device memory");
    auto storage = std::make_unique<DeviceStorage>(data);
    cuda_check(cudaMemset(data, 0, bytes), "cudaMemset");
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // other streams do not wait for the default one
    return Buffer(*this, Buffer::Place::kDevice, static_cast<std::byte*>(data), bytes, std::move(storage));
  }

  Buffer allocate_staging(std::size_t bytes) override {
    if (bytes == 0) return Buffer(*this, Buffer::Place::kHost, nullptr, 0, nullptr);
    use(index_);
    void* data = nullptr;
    allocated(cudaHostAlloc(&data, bytes, cudaHostAllocPortable), bytes, "page-locked host memory");
    auto storage = std::make_unique<StagingStorage>(data);
    std::memset(data, 0, bytes);
    return Buffer(*this, Buffer::Place::kHost, static_cast<std::byte*>(data), bytes, std::move(storage));
  }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CudaStream>(*this); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(index_); }

 private:
  void allocated(cudaError_t code, std::size_t bytes, const char* what) const {
    if (code != cudaErrorMemoryAllocation) return cuda_check(code, "allocation");
    cudaGetLastError();  // running out of memory is no lasting failure of the device
    throw UserError("GPU " + std::to_string(index_) + " (" + name_ + ") has no " +
                    human_bytes(static_cast<double>(bytes)) + " of " + what +
                    " left; use a smaller model, more ranks or a higher ZeRO stage");
  }

  const int index_;
  const std::string name_;
};

}  // namespace

std::vector<Device*> cuda_plugin_devices(std::string* why) {
  static std::vector<std::unique_ptr<CudaDevice>> devices;
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaErrorInsufficientDriver || code == cudaErrorNoDevice || (code == cudaSuccess && count == 0)) {
    cudaGetLastError();
    *why = code == cudaErrorInsufficientDriver ? "the NVIDIA driver is missing or older than this build's CUDA"
                                               : "the driver finds no device";
    return {};
  }
  if (code != cudaSuccess) {
    *why = std::string("the CUDA runtime says: ") + cudaGetErrorString(code);
    return {};
  }
  std::vector<Device*> found;
  for (int i = static_cast<int>(devices.size()); i < count; ++i) {
    cudaDeviceProp properties;
    cuda_check(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
    devices.push_back(std::make_unique<CudaDevice>(i, properties.name));
  }
  for (const auto& device : devices) found.push_back(device.get());
  return found;
}

}  // namespace bellows
