#include <deque>
#include <set>
#include <thread>

#include "bellows/base/error.h"
#include "bellows/base/memory.h"
#include "bellows/base/mutex.h"
#include "gpu/mover.h"

namespace bellows {
namespace {

/// A non-blocking NCCL communicator: every call returns at once and is waited for by asking, so that another thread can
/// abort it at any time. After an abort nothing of it is touched any more.
class NcclComm {
 public:
  NcclComm(const NcclCalls& nccl, Device& device, int rank, int world_size, const NcclCalls::UniqueId& id,
           const GpuMover::Check& check)
      : nccl_(nccl) {
    constexpr const char* kName = "ncclCommInitRankConfig";
    try {
      {
        MutexLock lock(mutex_);
        require(kName, nccl_.init(&comm_, device.index(), world_size, &id, rank));
      }
      finish(kName, check);
    } catch (...) {
      abort();
      throw;
    }
  }
  ~NcclComm() { abort(); }

  /// `body` gets the communicator; what it returns is NCCL's code. Then waits until NCCL has taken it all up.
  template <class Body>
  void run(const char* name, const GpuMover::Check& check, const Body& body) {
    {
      MutexLock lock(mutex_);
      if (!comm_) throw DeviceError(std::string(name) + ": the communicator was aborted");
      require(name, body(comm_));
    }
    finish(name, check);
  }

  void abort() noexcept {
    MutexLock lock(mutex_);
    if (comm_) nccl_.abort(comm_);
    comm_ = nullptr;
  }

  void close(const GpuMover::Check& check) {
    run("ncclCommFinalize", check, [&](void* comm) { return nccl_.finalize(comm); });
    MutexLock lock(mutex_);
    if (comm_) nccl_.destroy(comm_);
    comm_ = nullptr;
  }

  /// Throws if NCCL has met an error since.
  void look(const char* name) { state(name); }

 private:
  void require(const char* name, int code) const {
    if (code != NcclCalls::kSuccess && code != NcclCalls::kInProgress)
      throw DeviceError(std::string(name) + " failed: " + nccl_.message(code) + " (" + std::to_string(code) + ")");
  }
  int state(const char* name) {
    MutexLock lock(mutex_);
    if (!comm_) throw DeviceError(std::string(name) + ": the communicator was aborted");
    int state = NcclCalls::kSuccess;
    require(name, nccl_.async_error(comm_, &state));
    require(name, state);
    return state;
  }
  // Asked in any case: what a call has begun may go on where the call itself said success.
  void finish(const char* name, const GpuMover::Check& check) {
    for (int turn = 0; state(name) == NcclCalls::kInProgress; ++turn) {
      check();
      std::this_thread::sleep_for(std::chrono::microseconds(turn < 20 ? 10 : 200));
    }
  }

  const NcclCalls& nccl_;
  Mutex mutex_;
  void* comm_ BELLOWS_GUARDED_BY(mutex_) = nullptr;
};

struct NcclStorage final : Buffer::Storage {
  NcclStorage(const NcclCalls& n, void* p) : nccl(n), memory(p) {}
  ~NcclStorage() override { nccl.free(memory); }
  const NcclCalls& nccl;
  void* memory;
};

// Reproducible: lane pieces go to their owners in one group of sends and receives, and the tree-sum kernel behind them
// on the stream adds. Fast: NCCL adds in an order of its own.
class NcclMover final : public GpuMover {
 public:
  NcclMover(const GpuCalls& calls, const NcclCalls& nccl, Device& device, Stream& stream, int rank, int world_size,
            const NcclCalls::UniqueId& id, bool reproducible, const Check& check)
      : calls_(calls),
        nccl_(nccl),
        device_(device),
        stream_(stream),
        rank_(rank),
        reproducible_(reproducible),
        comm_(nccl, device, rank, world_size, id, check) {}

  GpuAccess access() const override { return GpuAccess::kMessages; }
  bool peers_read_windows() const override { return false; }  // sends are over when the stream is

  Buffer allocate(std::size_t bytes) override {
    if (bytes == 0) return device_.allocate(0);
    void* memory = nullptr;
    const int code = nccl_.allocate(device_.index(), &memory, bytes);
    if (code != NcclCalls::kSuccess)
      throw UserError("GPU " + std::to_string(device_.index()) + " has no " + human_bytes(static_cast<double>(bytes)) +
                      " for a window (ncclMemAlloc: " + nccl_.message(code) + ")");
    allocated_.insert(memory);
    return Buffer(device_, Buffer::Place::kDevice, static_cast<std::byte*>(memory), bytes,
                  std::make_unique<NcclStorage>(nccl_, memory));
  }

  std::string describe(const Buffer& memory, std::size_t offset, std::size_t bytes) override {
    const bool whole = offset == 0 && bytes == memory.size() && allocated_.count(memory.data()) > 0;
    return whole ? "window" : "plain";
  }

  void expose(const Buffer& memory, const std::vector<std::string>& told, GpuWindow& window,
              const Check& check) override {
    bool symmetric = nccl_.enrol_window != nullptr;
    for (std::size_t r = 0; r < told.size(); ++r)
      symmetric = symmetric && told[r] == "window" && window.bytes[r] == window.bytes[0];
    const std::size_t bytes = window.bytes[rank_];
    if (bytes == 0) return;
    void*& handle = handles_.emplace_back(nullptr);  // NCCL may write it until it is through, whatever happens here
    if (symmetric) {
      comm_.run("ncclCommWindowRegister", check,
                [&](void* comm) { return nccl_.enrol_window(comm, memory.data(), bytes, &handle); });
    } else if (nccl_.enrol) {
      comm_.run("ncclCommRegister", check, [&](void* comm) { return nccl_.enrol(comm, window.own, bytes, &handle); });
    }
    if (!handle) return;
    const auto dismiss = symmetric ? nccl_.dismiss_window : nccl_.dismiss;
    window.on_end.push_back([this, dismiss, &handle] {
      comm_.run(
          "ncclCommDeregister", [] {}, [&](void* comm) { return dismiss(comm, handle); });
    });
  }

  void reduce_scatter(const GpuReduceScatter& plan, const GpuWindow& window, std::byte* scratch,
                      const Check& check) override {
    if (!reproducible_ && plan.even) {
      comm_.run("ncclReduceScatter", check, [&](void* comm) {
        return nccl_.reduce_scatter(window.own + plan.even_offset, plan.even_result, plan.even_count, plan.dtype, comm,
                                    stream_.native());
      });
      return;
    }
    const auto place = [&](const GpuMemory& memory) {
      return memory.kind == GpuMemory::kWindow ? window.own + memory.offset : scratch + memory.offset;
    };
    for (const auto& wave : plan.waves) {
      for (const auto& fold : wave.before) enqueue_fold(calls_, stream_, fold, plan.dtype, window, rank_, scratch);
      group("ncclSend/ncclRecv", check, !wave.sends.empty() || !wave.receives.empty(), [&](void* comm) {
        int code = NcclCalls::kSuccess;
        for (const auto& m : wave.sends)
          code = first(code, nccl_.send(place(m.memory), m.bytes, m.peer, comm, stream_.native()));
        for (const auto& m : wave.receives)
          code = first(code, nccl_.receive(place(m.memory), m.bytes, m.peer, comm, stream_.native()));
        return code;
      });
      // Behind the group on the stream: it stands there as soon as NCCL says that it is through with the call.
      for (const auto& fold : wave.after) enqueue_fold(calls_, stream_, fold, plan.dtype, window, rank_, scratch);
    }
  }

  void all_gather(const GpuAllGather& plan, const GpuWindow& window, const Check& check) override {
    if (plan.even) {
      comm_.run("ncclAllGather", check, [&](void* comm) {
        return nccl_.all_gather(window.own + plan.parts[rank_].source, plan.parts[0].destination, plan.parts[0].bytes,
                                comm, stream_.native());
      });
      return;
    }
    bool any = false;
    for (const auto& part : plan.parts) {
      any = true;
      if (part.rank != rank_) continue;
      const std::byte* const source = window.own + part.source;
      if (source != part.destination) stream_.copy({part.destination, part.bytes}, {source, part.bytes});
    }
    const int n = static_cast<int>(window.bytes.size());
    group("ncclSend/ncclRecv", check, any && n > 1, [&](void* comm) {
      int code = NcclCalls::kSuccess;
      for (const auto& part : plan.parts) {
        if (part.rank != rank_) {
          code = first(code, nccl_.receive(part.destination, part.bytes, part.rank, comm, stream_.native()));
          continue;
        }
        for (int i = 1; i < n; ++i)
          code = first(code, nccl_.send(window.own + part.source, part.bytes, (rank_ + i) % n, comm, stream_.native()));
      }
      return code;
    });
  }

  void look() override { comm_.look("ncclCommGetAsyncError"); }
  void abort() noexcept override { comm_.abort(); }
  void close(const Check& check) override { comm_.close(check); }

 private:
  static int first(int code, int next) {
    return code != NcclCalls::kSuccess && code != NcclCalls::kInProgress ? code : next;
  }
  template <class Body>
  void group(const char* name, const Check& check, bool any, const Body& body) {
    if (!any) return;
    comm_.run(name, check, [&](void* comm) {
      int code = nccl_.group_start();
      if (code == NcclCalls::kSuccess) code = body(comm);
      return first(code, nccl_.group_end());
    });
  }

  const GpuCalls& calls_;
  const NcclCalls& nccl_;
  Device& device_;
  Stream& stream_;
  const int rank_;
  const bool reproducible_;
  std::set<const void*> allocated_;
  std::deque<void*> handles_;
  NcclComm comm_;
};

}  // namespace

std::unique_ptr<GpuMover> make_nccl_mover(const GpuCalls& calls, const NcclCalls& nccl, Device& device, Stream& stream,
                                          int rank, int world_size, const NcclCalls::UniqueId& id, bool reproducible,
                                          const GpuMover::Check& check) {
  return std::make_unique<NcclMover>(calls, nccl, device, stream, rank, world_size, id, reproducible, check);
}

}  // namespace bellows
