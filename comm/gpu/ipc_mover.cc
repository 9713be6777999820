#include <sstream>

#include "bellows/base/error.h"
#include "gpu/mover.h"
#include "transports/transport.h"

namespace bellows {
namespace {

// Every rank maps its peers' windows once, when they are exposed. A reduce-scatter is then one kernel that reads each
// piece in tree order, wherever it stands, and writes the sum; an all-gather is a copy from each peer.
class IpcMover final : public GpuMover {
 public:
  IpcMover(const GpuCalls& calls, Device& device, Stream& stream, int rank)
      : calls_(calls), device_(device), stream_(stream), rank_(rank) {}

  GpuAccess access() const override { return GpuAccess::kMapped; }
  bool peers_read_windows() const override { return true; }
  Buffer allocate(std::size_t bytes) override { return device_.allocate(bytes); }

  // told = machine "\n" pid start device address offset "\n" name
  std::string describe(const Buffer& memory, std::size_t offset, std::size_t bytes) override {
    const Introduction self = introduce_this_process();
    std::ostringstream out;
    out << self.machine << '\n'
        << self.pid << ' ' << self.start_time << ' ' << device_.index() << ' '
        << reinterpret_cast<std::uintptr_t>(memory.data()) << ' ' << offset << '\n'
        << (bytes == 0 ? std::string() : calls_.share(device_, memory.data()));
    return out.str();
  }

  void expose(const Buffer&, const std::vector<std::string>& told, GpuWindow& window, const Check&) override {
    const Introduction self = introduce_this_process();
    for (std::size_t r = 0; r < told.size(); ++r) {
      std::istringstream in(told[r]);
      std::string machine, name;
      std::int64_t pid = 0;
      std::uint64_t start_time = 0, offset = 0;
      std::uintptr_t address = 0;
      int device = 0;
      std::getline(in, machine);
      in >> pid >> start_time >> device >> address >> offset;
      in.get();
      name.assign(std::istreambuf_iterator<char>(in), {});
      const std::byte*& mapped = window.mapped.emplace_back(nullptr);
      if (window.bytes[r] == 0) continue;
      if (machine == self.machine && pid == self.pid && start_time == self.start_time) {
        if (device != device_.index()) calls_.reach(device_, device);
        mapped = reinterpret_cast<const std::byte*>(address) + offset;
        continue;
      }
      try {
        std::byte* const base = calls_.open(device_, name);
        window.on_end.push_back([this, base] { calls_.close(device_, base); });
        mapped = base + offset;
      } catch (const DeviceError& error) {
        throw UserError("cuda-ipc cannot reach the memory of rank " + std::to_string(r) + ": " + error.what());
      }
    }
  }

  void reduce_scatter(const GpuReduceScatter& plan, const GpuWindow& window, std::byte* scratch,
                      const Check&) override {
    for (const auto& wave : plan.waves)
      for (const auto& fold : wave.after) enqueue_fold(calls_, stream_, fold, plan.dtype, window, rank_, scratch);
  }

  void all_gather(const GpuAllGather& plan, const GpuWindow& window, const Check&) override {
    // Starting behind itself, so that not all read from one peer at a time.
    for (std::size_t i = 0; i < plan.parts.size(); ++i) {
      const auto& part = plan.parts[(i + static_cast<std::size_t>(rank_)) % plan.parts.size()];
      const std::byte* const source = window.mapped[part.rank] + part.source;
      if (source != part.destination) stream_.copy({part.destination, part.bytes}, {source, part.bytes});
    }
  }

  void abort() noexcept override {}  // kernels read what is mapped and end by themselves
  void close(const Check&) override {}

 private:
  const GpuCalls& calls_;
  Device& device_;
  Stream& stream_;
  const int rank_;
};

std::byte* resolve(const GpuMemory& memory, const GpuWindow& window, int rank, std::byte* scratch) {
  switch (memory.kind) {
    case GpuMemory::kScratch:
      return scratch + memory.offset;
    case GpuMemory::kWindow:
      // Peers' windows are only read.
      return (memory.rank == rank ? window.own : const_cast<std::byte*>(window.mapped[memory.rank])) + memory.offset;
    case GpuMemory::kAddress:
      break;
  }
  return memory.address;
}

}  // namespace

void enqueue_fold(const GpuCalls& calls, Stream& stream, const GpuReduceScatter::Fold& fold, DType dtype,
                  const GpuWindow& window, int rank, std::byte* scratch) {
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> results;
  for (const GpuMemory& source : fold.sources) sources.push_back(resolve(source, window, rank, scratch));
  for (const GpuMemory& result : fold.results) results.push_back(resolve(result, window, rank, scratch));
  calls.fold(stream, *fold.program, dtype, sources.data(), results.data(), fold.count);
}

std::unique_ptr<GpuMover> make_ipc_mover(const GpuCalls& calls, Device& device, Stream& stream, int rank) {
  return std::make_unique<IpcMover>(calls, device, stream, rank);
}

}  // namespace bellows
