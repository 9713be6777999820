#include "gpu/gpu_communicator.h"

#include <cstring>
#include <deque>
#include <stdexcept>
#include <thread>

#include "bellows/base/error.h"
#include "gpu/gpu_queue.h"
#include "gpu/mover.h"

namespace bellows {
namespace {

/// What is kept of scratch memory beyond a call: waves are cut to need no more.
constexpr std::size_t kWaveBytes = std::size_t{64} << 20;

/// Exchanges of its own, beside those of the same name that others make.
class BootstrapFor final : public Bootstrap {
 public:
  BootstrapFor(Bootstrap& bootstrap, std::string purpose) : bootstrap_(bootstrap), purpose_(std::move(purpose)) {}
  std::vector<std::string> exchange(const World& world, const std::string& tag, const std::string& blob,
                                    Deadline deadline) override {
    return bootstrap_.exchange(world, purpose_ + tag, blob, deadline);
  }

 private:
  Bootstrap& bootstrap_;
  const std::string purpose_;
};

class GpuCommunicator final : public Communicator {
 public:
  GpuCommunicator(const GpuHost& host, Device& device, std::unique_ptr<Communicator> outer,
                  std::unique_ptr<Communicator> inner, const NcclCalls::UniqueId& id, const CommOptions& options,
                  const char* name, Deadline deadline)
      : calls_(*host.calls),
        device_(device),
        name_(name),
        timeout_(from_seconds(options.timeout_s)),
        host_(std::move(outer)),
        pace_(std::move(inner)),
        stream_(device.make_stream()),
        event_(device.make_event()) {
    const auto check = [&] { look("connect", deadline); };
    const World& world = host_->world();
    guarded("connect", [&] {
      mover_ = host.nccl ? make_nccl_mover(calls_, *host.nccl, device_, *stream_, world.rank, world.world_size, id,
                                           options.reduction == Reduction::kReproducible, check)
                         : make_ipc_mover(calls_, device_, *stream_, world.rank);
    });
    queue_ = std::make_unique<GpuQueue>();
  }

  ~GpuCommunicator() override {
    queue_.reset();  // what is under way ends first
    try {
      const Deadline deadline = Deadline::after(10);
      const auto check = [&] { look("close", deadline); };
      if (failed()) mover_->abort();
      for (GpuWindow& window : windows_)
        for (const auto& undo : window.on_end) undo();
      if (!failed()) mover_->close(check);
    } catch (const std::exception&) {
      mover_->abort();  // the generation is over, in whatever way
    }
  }

  const World& world() const override { return host_->world(); }
  const char* transport() const override { return name_; }

  Window expose(const SharedMemory& memory, std::size_t offset, std::size_t bytes) override {
    return add({host_->expose(memory, offset, bytes), nullptr});
  }
  Window expose_device(const Buffer& memory, std::size_t offset, std::size_t bytes) override {
    if (offset > memory.size() || bytes > memory.size() - offset)
      throw std::invalid_argument("cannot expose " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                                  " of a buffer of " + std::to_string(memory.size()));
    if (memory.device() && memory.device() != &device_)
      throw std::invalid_argument("rank " + std::to_string(world().rank) + " works on GPU " +
                                  std::to_string(device_.index()) + ", the buffer is on another device");
    GpuWindow& window = windows_.emplace_back();
    window.own = memory.data() ? memory.data() + offset : nullptr;
    // On the queue, behind the collectives before it: its exchanges must not mix with theirs.
    run("expose", [&](const GpuMover::Check& check) {
      std::vector<std::string> told;
      for (const std::string& blob :
           pace_->all_gather_blobs(std::to_string(bytes) + "\n" + mover_->describe(memory, offset, bytes), "expose")) {
        const std::size_t line = blob.find('\n');
        window.bytes.push_back(std::stoull(blob.substr(0, line)));
        told.push_back(blob.substr(line + 1));
      }
      mover_->expose(memory, told, window, check);
      pace_->barrier("expose");
    }).wait();
    return add({{}, &window});
  }
  Buffer allocate_window(Device& device, std::size_t bytes) override {
    return &device == &device_ ? mover_->allocate(bytes) : device.allocate(bytes);
  }

  Work reduce_scatter(ReduceScatterArgs args) override {
    const Known& known = find(args.window, args.what);
    if (!known.device) {
      args.window = known.host;
      return host_->reduce_scatter(std::move(args));
    }
    const GpuWindow& window = *known.device;
    auto plan = std::make_shared<GpuReduceScatter>();
    plan_gpu_reduce_scatter({world().rank, window.bytes}, args, mover_->access(), kWaveBytes, plan.get());
    return run(args.what, [this, plan, &window, what = std::string(args.what)](const GpuMover::Check& check) {
      if (plan->scratch_bytes > scratch_.size()) scratch_ = device_.allocate(plan->scratch_bytes);
      meet(what, plan->signature);
      mover_->reduce_scatter(*plan, window, scratch_.data(), check);
      finish(what, check);
    });
  }

  Work all_gather(AllGatherArgs args) override {
    const Known& known = find(args.window, args.what);
    if (!known.device) {
      args.window = known.host;
      return host_->all_gather(std::move(args));
    }
    const GpuWindow& window = *known.device;
    const GpuAllGather plan = plan_gpu_all_gather({world().rank, window.bytes}, window.own, args);
    return run(args.what, [this, plan, &window, what = std::string(args.what)](const GpuMover::Check& check) {
      meet(what, plan.signature);
      mover_->all_gather(plan, window, check);
      finish(what, check);
    });
  }

  Work all_reduce(AllReduceArgs args) override {
    const Known &from = find(args.window, args.what), &to = find(args.destination, args.what);
    if (from.device && to.device) return Communicator::all_reduce(std::move(args));
    if (from.device || to.device)
      throw std::invalid_argument(std::string(args.what) + ": one window is on a device, the other is not");
    args.window = from.host;
    args.destination = to.host;
    return host_->all_reduce(std::move(args));
  }

  void all_reduce_sum(std::span<double> data, const char* what) override { host_->all_reduce_sum(data, what); }
  std::vector<std::string> all_gather_blobs(const std::string& blob, const char* what) override {
    return host_->all_gather_blobs(blob, what);
  }
  void broadcast(std::span<std::byte> data, int root, const char* what) override { host_->broadcast(data, root, what); }
  void all_to_all_v(const std::vector<std::span<const std::byte>>& send,
                    const std::vector<std::span<std::byte>>& receive, const char* what) override {
    host_->all_to_all_v(send, receive, what);
  }
  void barrier(const char* what) override { host_->barrier(what); }

  void abort(const std::string& why) override {
    host_->abort(why);
    pace_->abort(why);
    mover_->abort();
    abort_parts(why);
  }
  void report(const CommError& error) override {
    host_->report(error);
    pace_->report(error);
    mover_->abort();
  }
  std::exception_ptr failure() const override { return host_->failure(); }
  CommStats stats() const override { return host_->stats(); }

 private:
  /// A window of either kind.
  struct Known {
    Window host;
    GpuWindow* device = nullptr;
  };
  Window add(Known known) {
    known_.push_back(known);
    return {static_cast<int>(known_.size()) - 1};
  }
  const Known& find(Window window, const char* what) const {
    if (window.id < 0 || window.id >= static_cast<int>(known_.size()))
      throw std::invalid_argument(std::string(what) + ": window " + std::to_string(window.id) +
                                  " was not made by this communicator");
    return known_[static_cast<std::size_t>(window.id)];
  }

  template <class Body>
  Work run(const char* what, Body body) {
    const Deadline deadline = Deadline::at(now_ns() + timeout_);
    return queue_->submit([this, what = std::string(what), body = std::move(body), deadline] {
      guarded(what, [&] { body([&] { look(what, deadline); }); });
    });
  }

  bool failed() const { return host_->failure() || pace_->failure(); }

  /// Throws once the generation has failed or `deadline` has passed.
  void look(const std::string& what, Deadline deadline) const {
    for (const Communicator* comm : {host_.get(), pace_.get()})
      if (const std::exception_ptr error = comm->failure()) std::rethrow_exception(error);
    if (deadline.passed())
      throw CommError(
          CommError::Kind::kTimeout, what, {}, world().generation,
          what + ": the devices were not through in time (generation " + std::to_string(world().generation) + ")");
  }

  /// Makes whatever `body` throws the first error of the generation, unless there is one, and throws that.
  template <class Body>
  void guarded(const std::string& what, const Body& body) {
    try {
      if (const std::exception_ptr error = host_->failure()) std::rethrow_exception(error);
      body();
    } catch (const CommError& error) {
      fail(error);
    } catch (const std::exception& error) {
      fail(CommError(CommError::Kind::kAborted, what, {}, world().generation,
                     what + ": rank " + std::to_string(world().rank) + ": " + error.what() + " (generation " +
                         std::to_string(world().generation) + ")"));
    }
  }
  [[noreturn]] void fail(const CommError& error) {
    host_->report(error);
    pace_->report(error);
    if (mover_) mover_->abort();
    // The device may read and write what the caller gets back until it is through.
    try {
      stream_->synchronize();
    } catch (const DeviceError&) {
    }
    if (const std::exception_ptr first = host_->failure()) std::rethrow_exception(first);
    throw error;
  }

  /// Returns when every rank has come to this call, and to the same one.
  void meet(const std::string& what, std::uint64_t signature) {
    std::string mine(sizeof signature, '\0');
    std::memcpy(mine.data(), &signature, sizeof signature);
    mine += what;
    const auto all = pace_->all_gather_blobs(mine, what.c_str());
    for (int r = 0; r < world().world_size; ++r)
      if (all[r] != mine)
        throw CommError(CommError::Kind::kAborted, what, {r, world().rank}, world().generation,
                        what + ": rank " + std::to_string(r) + " makes another call (" +
                            all[r].substr(sizeof signature) + ") or gives other arguments than rank " +
                            std::to_string(world().rank));
  }

  /// Waits for the device, and for peers that read this rank's windows.
  void finish(const std::string& what, const GpuMover::Check& check) {
    stream_->record(*event_);
    for (int turn = 0; !event_->done(); ++turn) {
      check();
      mover_->look();
      std::this_thread::sleep_for(std::chrono::microseconds(turn < 50 ? 10 : 100));
    }
    if (mover_->peers_read_windows()) pace_->barrier(what.c_str());
  }

  const GpuCalls& calls_;
  Device& device_;
  const char* const name_;
  const Nanos timeout_;
  const std::unique_ptr<Communicator> host_;  // the caller's calls that are not about device memory
  const std::unique_ptr<Communicator> pace_;  // the queue's
  const std::unique_ptr<Stream> stream_;
  const std::unique_ptr<Event> event_;
  Buffer scratch_;  // the queue's
  std::unique_ptr<GpuMover> mover_;
  std::deque<GpuWindow> windows_;  // calls under way refer to them
  std::deque<Known> known_;
  std::unique_ptr<GpuQueue> queue_;
};

}  // namespace

std::unique_ptr<Communicator> connect_gpu(const World& world, Bootstrap& bootstrap, const CommOptions& options,
                                          const GpuHost& host, const char* name, Deadline deadline) {
  if (host.devices.empty()) throw UserError(std::string("transport '") + name + "': this process has no GPU");
  Device& device = *host.devices[static_cast<std::size_t>(world.local_rank) % host.devices.size()];
  CommOptions plain = options;
  plain.transport = plain.algorithm = "auto";
  plain.reduction = Reduction::kReproducible;
  plain.connect_timeout_s = seconds(std::max<Nanos>(deadline.remaining(), 1));
  BootstrapFor outer(bootstrap, "gpu "), inner(bootstrap, "gpu pace ");
  auto host_comm = connect(world, outer, plain);
  auto pace_comm = connect(world, inner, plain);

  NcclCalls::UniqueId id{};
  if (host.nccl) {
    std::string mine;  // rank 0's counts
    if (world.rank == 0) {
      const int code = host.nccl->unique_id(&id);
      if (code == NcclCalls::kSuccess)
        mine.assign(id.bytes, sizeof id.bytes);
      else
        mine = std::string("ncclGetUniqueId: ") + host.nccl->message(code);
    }
    const std::string first = bootstrap.exchange(world, "gpu nccl id", mine, deadline)[0];
    if (first.size() != sizeof id.bytes) throw UserError("transport 'nccl': rank 0 has no id to meet under: " + first);
    std::memcpy(id.bytes, first.data(), sizeof id.bytes);
  }
  return std::make_unique<GpuCommunicator>(host, device, std::move(host_comm), std::move(pace_comm), id, options, name,
                                           deadline);
}

}  // namespace bellows
