#include "routed/wire_mpi.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <list>
#include <stdexcept>

#include "bellows/base/log.h"
#include "bellows/base/mutex.h"
#include "plugin_mpi.h"

namespace bellows {
namespace {

constexpr Nanos kShortestNap = 20'000, kLongestNap = 200'000;
constexpr std::size_t kError = 256;

// MPI is mostly good for one thread at a time, and a process may have several wires.
Mutex& one_at_a_time() {
  static Mutex mutex;
  return mutex;
}

class MpiWire final : public Wire {
 public:
  explicit MpiWire(const World& world) : world_(world), mpi_(started_mpi()) {
    if (!mpi_) throw std::runtime_error(mpi_obstacle());
    if (mpi_->largest_tag() < kTags)
      throw std::runtime_error("MPI: tags up to " + std::to_string(mpi_->largest_tag()) + " are too short");
    wake_fd_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (world.rank == 0)
      log::info("collectives go through {}; when a rank is lost, MPI decides what becomes of the others",
                mpi_->describe());
  }
  ~MpiWire() override {
    cancel_all();
    if (group_) {
      MutexLock lock(one_at_a_time());
      mpi_->drop_group(group_);
    }
    ::close(wake_fd_);
  }

  /// Its rank in the world that mpirun started.
  std::string address() const override { return std::to_string(mpi_->world_rank()); }

  void connect(const std::vector<std::string>& addresses) override {
    std::vector<int> ranks;
    for (int r = 0; r < world_.world_size; ++r)
      ranks.push_back(r == world_.rank ? mpi_->world_rank() : std::stoi(addresses[r]));
    char error[kError] = {};
    MutexLock lock(one_at_a_time());
    if (mpi_->make_group(ranks.data(), world_.world_size, static_cast<int>(world_.generation & 0x7fff), &group_, error,
                         sizeof error) != 0)
      throw std::runtime_error(error);
  }

  void send(int rank, WireTag tag, std::span<const std::byte> message, Transfer& transfer) override {
    Pending* pending = begin(rank, message.size(), transfer, false);
    if (!pending) return;
    char error[kError] = {};
    MutexLock lock(one_at_a_time());
    if (mpi_->send(group_, rank, tag_of(tag), message.data(), message.size(), &pending->request, error, sizeof error))
      fail(*pending, error);
  }
  void receive(int rank, WireTag tag, std::span<std::byte> place, Transfer& transfer) override {
    Pending* pending = begin(rank, place.size(), transfer, true);
    if (!pending) return;
    transfer.data = place.data();
    char error[kError] = {};
    MutexLock lock(one_at_a_time());
    if (mpi_->receive(group_, rank, tag_of(tag), place.data(), place.size(), &pending->request, error, sizeof error))
      fail(*pending, error);
  }

  bool progress() override {
    bool moved = false;
    for (auto it = pending_.begin(); it != pending_.end();) {
      Pending& pending = *it++;
      int done = 0;
      std::size_t size = 0;
      char error[kError] = {};
      bool failed;
      {
        MutexLock lock(one_at_a_time());
        failed = mpi_->test(pending.request, &done, &size, error, sizeof error) != 0;
      }
      if (!done) continue;
      moved = true;
      if (failed) {
        fail(pending, "rank " + std::to_string(pending.rank) + ": " + error);
      } else if (pending.receiving && size != pending.bytes) {
        fail(pending, "rank " + std::to_string(pending.rank) + " sent " + std::to_string(size) +
                          " bytes instead of the expected " + std::to_string(pending.bytes));
      } else {
        pending.transfer->state = Transfer::kDone;
        pending_.erase(pending.self);
      }
    }
    if (moved) nap_ = kShortestNap;
    return moved;
  }

  void wait(Nanos limit, std::span<const int> also) override {
    std::vector<pollfd> fds = {{wake_fd_, POLLIN, 0}};
    for (const int fd : also) fds.push_back({fd, POLLIN, 0});
    const Nanos nap = pending_.empty() ? limit : std::min(limit, nap_);
    nap_ = std::min(2 * nap_, kLongestNap);
    const timespec span{nap / 1'000'000'000, nap % 1'000'000'000};
    ::ppoll(fds.data(), fds.size(), &span, nullptr);
    eventfd_t count;
    if (fds[0].revents) ::eventfd_read(wake_fd_, &count);
  }
  void wake() override { ::eventfd_write(wake_fd_, 1); }

  void cancel_all() override {
    while (!pending_.empty()) {
      Pending& pending = pending_.front();
      if (pending.request) {
        MutexLock lock(one_at_a_time());
        mpi_->drop(pending.request);
      }
      fail(pending, "cancelled");
    }
    cancelled_ = true;
  }

  std::string describe() const override { return std::string("mpi (") + mpi_->describe() + ")"; }

 private:
  struct Pending {
    int rank = 0;
    std::size_t bytes = 0;
    Transfer* transfer = nullptr;
    bool receiving = false;
    void* request = nullptr;
    std::list<Pending>::iterator self;
  };

  // 15 bits of the call's number and 16 of the key: MPI guarantees no more than that, and fewer calls are under way.
  static constexpr int kTags = INT_MAX;
  static int tag_of(WireTag tag) { return static_cast<int>((tag.call & 0x7fff) << 16 | tag.key); }

  Pending* begin(int rank, std::size_t bytes, Transfer& transfer, bool receiving) {
    transfer.state = Transfer::kFailed;
    transfer.error = cancelled_ ? "the wire is closed" : "a message of over 2 GiB";
    if (cancelled_ || bytes > INT_MAX) return nullptr;
    transfer.error.clear();
    transfer.state = Transfer::kPending;
    pending_.emplace_back(Pending{rank, bytes, &transfer, receiving, nullptr, {}});
    pending_.back().self = std::prev(pending_.end());
    return &pending_.back();
  }
  void fail(Pending& pending, const std::string& why) {
    pending.transfer->state = Transfer::kFailed;
    pending.transfer->error = why;
    pending_.erase(pending.self);
  }

  const World world_;
  const BellowsMpiPlugin* const mpi_;
  void* group_ = nullptr;
  int wake_fd_ = -1;
  Nanos nap_ = kShortestNap;
  bool cancelled_ = false;
  std::list<Pending> pending_;
};

}  // namespace

std::string mpi_obstacle() {
  if (started_mpi()) return {};
  return "this process was not started by mpirun, or this build has no MPI";
}

std::unique_ptr<Wire> make_mpi_wire(const World& world) { return std::make_unique<MpiWire>(world); }

}  // namespace bellows
