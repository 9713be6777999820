#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bellows/base/error.h"

namespace bellows {

class Device;

/// Memory of a device, or page-locked host memory beside it. Move-only; freed on destruction. Its device outlives it.
class Buffer {
 public:
  enum class Place { kDevice, kHost };  ///< kHost: the processor may read and write it directly

  /// What a device implementation hands over; its destructor frees the memory.
  struct Storage {
    virtual ~Storage() = default;
  };

  Buffer() = default;
  Buffer(Device& device, Place place, std::byte* data, std::size_t size, std::unique_ptr<Storage> storage)
      : device_(&device), place_(place), data_(data), size_(size), storage_(std::move(storage)) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer moved(std::move(other));
    swap(moved);
    return *this;
  }

  Device* device() const { return device_; }  ///< null for an empty buffer
  Place place() const { return place_; }
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  /// An address range of the device: only the host may look into it where place() is kHost or the device is the CPU.
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(place_, other.place_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(storage_, other.storage_);
  }

  Device* device_ = nullptr;
  Place place_ = Place::kDevice;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::unique_ptr<Storage> storage_;
};

/// A point in the work of a stream.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() const = 0;   ///< true before it is first recorded
  virtual void synchronize() = 0;  ///< the calling thread waits
};

/// Work of one device, carried out in the order of the calls and asynchronously to the caller; memory handed to a call
/// stays borrowed until then. Sizes are checked here, once; failures of a device throw DeviceError, at the latest from
/// synchronize(). On the CPU everything is done when the call returns.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device& device() const = 0;

  /// Between host and device, or within a device: all addresses are known to the device. Both spans have one length.
  void copy(std::span<std::byte> to, std::span<const std::byte> from);
  void fill(std::span<std::byte> bytes, std::byte value);

  virtual void record(Event& event) = 0;
  virtual void wait(Event& event) = 0;  ///< work queued from here on starts after the event; the caller does not wait
  virtual void synchronize() = 0;       ///< the calling thread waits for everything queued so far
  virtual void* native() const = 0;     ///< cudaStream_t; null on the CPU

 private:
  virtual void do_copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  virtual void do_fill(std::byte* to, std::byte value, std::size_t bytes) = 0;
};

/// Where memory and work live. Made once per process and never destroyed before its buffers, streams and events.
class Device {
 public:
  enum class Kind { kCpu, kCuda };
  struct Memory {
    std::size_t free = 0, total = 0;
  };

  virtual ~Device() = default;
  virtual Kind kind() const = 0;
  virtual int index() const = 0;         ///< among the devices of its kind
  virtual std::string name() const = 0;  ///< as the driver reports it: the key of gpu_dense_peak
  virtual Memory memory() const = 0;
  /// Zeroed memory of the device. Throws UserError naming size and device if there is not that much.
  virtual Buffer allocate(std::size_t bytes) = 0;
  /// Zeroed host memory that copies to and from this device run fastest with (page-locked).
  virtual Buffer allocate_staging(std::size_t bytes) = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
};

/// A device reported a failure; the message names the device and the call.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

Device& cpu_device();

/// The CUDA devices of this host, found once by loading the plugin `libbellows_cuda.so` (from ../lib beside the
/// executable). A failure says in one line what is missing: the plugin, the driver or a device. Executables never link
/// CUDA.
const Result<std::vector<Device*>>& cuda_devices();

}  // namespace bellows
