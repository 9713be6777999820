#include <cstring>
#include <fstream>

#include "bellows/base/device.h"
#include "bellows/base/hardware.h"
#include "bellows/base/memory.h"

namespace bellows {
namespace {

struct HostStorage final : Buffer::Storage {
  explicit HostStorage(std::size_t bytes) : memory(bytes) {}
  HostMemory memory;
};

class CpuEvent final : public Event {
 public:
  bool done() const override { return true; }
  void synchronize() override {}
};

// Everything is done when the call returns, so events and waits have nothing to order.
class CpuStream final : public Stream {
 public:
  explicit CpuStream(Device& device) : device_(device) {}
  Device& device() const override { return device_; }
  void record(Event&) override {}
  void wait(Event&) override {}
  void synchronize() override {}
  void* native() const override { return nullptr; }

 private:
  void do_copy(std::byte* to, const std::byte* from, std::size_t bytes) override { std::memmove(to, from, bytes); }
  void do_fill(std::byte* to, std::byte value, std::size_t bytes) override {
    std::memset(to, std::to_integer<int>(value), bytes);
  }
  Device& device_;
};

class CpuDevice final : public Device {
 public:
  Kind kind() const override { return Kind::kCpu; }
  int index() const override { return 0; }
  std::string name() const override { return cpu_info().model; }
  Memory memory() const override {
    Memory memory;
    std::ifstream in("/proc/meminfo");
    std::string key, unit;
    for (std::size_t kib; in >> key >> kib && std::getline(in, unit);) {
      if (key == "MemTotal:") memory.total = kib * 1024;
      if (key == "MemAvailable:") memory.free = kib * 1024;
    }
    return memory;
  }
  Buffer allocate(std::size_t bytes) override {
    auto storage = std::make_unique<HostStorage>(bytes);
    std::byte* data = storage->memory.data();
    return Buffer(*this, Buffer::Place::kHost, data, bytes, std::move(storage));
  }
  Buffer allocate_staging(std::size_t bytes) override { return allocate(bytes); }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CpuStream>(*this); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CpuEvent>(); }
};

}  // namespace

Device& cpu_device() {
  static CpuDevice device;
  return device;
}

}  // namespace bellows
