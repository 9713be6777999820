#include "bellows/comm/communicator.h"

#include <cstring>
#include <deque>
#include <stdexcept>

#include "bellows/base/device.h"
#include "bellows/base/error.h"
#include "collectives/staged.h"
#include "collectives/windows.h"
#include "group.h"
#include "transports/transport.h"

namespace bellows {
namespace {

/// A handle that outlives its communicator: by then every call is done or has failed.
class CallState final : public Work::State {
 public:
  CallState(std::shared_ptr<Group> group, std::shared_ptr<Call> call)
      : group_(std::move(group)), call_(std::move(call)) {}
  bool done() const override { return call_->state.load(std::memory_order_acquire) >= Call::kDone; }
  void wait() override { group_->wait_done(call_); }
  Nanos finished_at() const override { return done() ? call_->finished_at : 0; }

 private:
  const std::shared_ptr<Group> group_;
  const std::shared_ptr<Call> call_;
};

class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(std::shared_ptr<Group> group, const char* transport)
      : group_(std::move(group)), transport_(transport) {}
  ~HostCommunicator() override { group_->close(); }

  const World& world() const override { return group_->world(); }
  const char* transport() const override { return transport_; }

  Window expose(const SharedMemory& memory, std::size_t offset, std::size_t bytes) override {
    if (offset > memory.size() || bytes > memory.size() - offset)
      throw std::invalid_argument("cannot expose " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                                  " of a memory of " + std::to_string(memory.size()));
    WindowPlace place;
    place.address = memory.data() + offset;
    place.offset = offset;
    place.bytes = bytes;
    place.segment_bytes = memory.size();
    place.fd = memory.fd();
    place.inode = inode_of(memory.fd());
    MappedWindow& window = windows_.emplace_back();
    window.own = memory.data() + offset;
    window.base.resize(world().world_size, nullptr);
    window.bytes.resize(world().world_size, 0);
    window.base[world().rank] = window.own;
    window.bytes[world().rank] = bytes;
    auto call = std::make_shared<Call>();
    call->kind = CallKind::kExpose;
    call->what = "expose";
    call->bytes = bytes;
    call->payload = std::as_bytes(std::span(&place, 1));
    call->on_arrival = [this, &window, raw = call.get()](int r) {
      WindowPlace theirs;
      std::memcpy(&theirs, group_->payload(r, *raw).data(), sizeof theirs);
      window.bytes[r] = theirs.bytes;
      window.base[r] = group_->reach().window(r, theirs);
    };
    group_->run(call);
    return {static_cast<int>(windows_.size()) - 1};
  }

  Work reduce_scatter(ReduceScatterArgs args) override {
    const MappedWindow& window = mapped(args.window, args.what);
    return start(make_reduce_scatter(*group_, window, std::move(args)));
  }
  Work all_gather(AllGatherArgs args) override {
    const MappedWindow& window = mapped(args.window, args.what);
    return start(make_all_gather(*group_, window, std::move(args)));
  }

  Work all_reduce(AllReduceArgs args) override {
    const MappedWindow& window = mapped(args.window, args.what);
    const MappedWindow& destination = mapped(args.destination, args.what);
    return start(make_all_reduce(*group_, window, destination, std::move(args)));
  }

  void all_reduce_sum(std::span<double> data, const char* what) override { staged_all_reduce(*group_, data, what); }
  std::vector<std::string> all_gather_blobs(const std::string& blob, const char* what) override {
    return staged_blobs(*group_, blob, what);
  }
  void broadcast(std::span<std::byte> data, int root, const char* what) override {
    staged_broadcast(*group_, data, root, what);
  }
  void all_to_all_v(const std::vector<std::span<const std::byte>>& send,
                    const std::vector<std::span<std::byte>>& receive, const char* what) override {
    staged_all_to_all(*group_, send, receive, what);
  }
  void barrier(const char* what) override { bellows::barrier(*group_, what); }

  void abort(const std::string& why) override {
    group_->abort(why);
    abort_parts(why);
  }
  void report(const CommError& error) override { group_->report(error); }
  std::exception_ptr failure() const override {
    try {
      group_->check_error();
      return nullptr;
    } catch (const CommError&) {
      return std::current_exception();
    }
  }
  CommStats stats() const override { return group_->stats(); }

 private:
  const MappedWindow& mapped(Window window, const char* what) const {
    if (window.id < 0 || window.id >= static_cast<int>(windows_.size()))
      throw std::invalid_argument(std::string(what) + ": window " + std::to_string(window.id) +
                                  " was not made by this communicator");
    return windows_[static_cast<std::size_t>(window.id)];
  }
  Work start(std::shared_ptr<Call> call) {
    return Work(std::make_shared<CallState>(group_, group_->submit(std::move(call), true)));
  }

  const std::shared_ptr<Group> group_;
  const char* const transport_;
  std::deque<MappedWindow> windows_;  // calls under way refer to them
};

}  // namespace

std::unique_ptr<Communicator> make_host_communicator(std::shared_ptr<Group> group, const char* transport) {
  return std::make_unique<HostCommunicator>(std::move(group), transport);
}

Window Communicator::expose_device(const Buffer&, std::size_t, std::size_t) {
  throw UserError(std::string("transport '") + transport() +
                  "' moves the memory of processors only; windows on a GPU need transport nccl or cuda-ipc");
}

Buffer Communicator::allocate_window(Device& device, std::size_t bytes) { return device.allocate(bytes); }

Work Communicator::all_reduce(AllReduceArgs args) {
  AllGatherArgs gather;
  gather.window = args.destination;
  gather.offset = args.offset;
  gather.origin = args.origin;
  for (const OwnedInterval& owned : args.owned) gather.owned.push_back({owned.rank, owned.interval});
  gather.dtype = args.dtype;
  gather.priority = args.priority;
  gather.what = args.what;
  ReduceScatterArgs reduce;
  reduce.window = args.window;
  reduce.origin = args.origin;
  reduce.owned = std::move(args.owned);
  std::vector<LaneSpan> spans;
  for (const LanePiece& piece : args.pieces) spans.push_back(piece.lanes);
  for (const LaneSpan& whole : result_spans({}, spans, true)) reduce.results.push_back({whole, args.sums, true});
  reduce.pieces = std::move(args.pieces);
  reduce.complete = true;
  reduce.dtype = args.dtype;
  reduce.priority = args.priority;
  reduce.what = args.what;
  // The sums must be there before anybody gathers them.
  reduce_scatter(std::move(reduce)).wait();
  return all_gather(std::move(gather));
}

std::vector<Interval> intervals_of(const std::vector<OwnedInterval>& owned, int rank) {
  std::vector<Interval> intervals;
  for (const OwnedInterval& one : owned)
    if (one.rank == rank) intervals.push_back(one.interval);
  return intervals;
}

Interval even_chunk(std::size_t count, int world_size, int rank) {
  const std::size_t n = static_cast<std::size_t>(world_size), r = static_cast<std::size_t>(rank);
  const std::size_t share = count / n, longer = count % n;
  const std::size_t begin = r * share + std::min(r, longer);
  return {begin, begin + share + (r < longer ? 1 : 0)};
}

}  // namespace bellows
