#include <algorithm>

#include "bellows/base/device.h"
#include "bellows/base/error.h"
#include "bellows/comm/communicator.h"
#include "group.h"
#include "transports/transport.h"

namespace bellows {
namespace {

/// Blobs of the ranks of a part, by way of the whole. Parts may need different numbers of exchanges, so every rank of
/// the whole takes part in rounds until all are through: a blob is "+" and what is exchanged, or "-" and why it failed.
class PartBootstrap final : public Bootstrap {
 public:
  PartBootstrap(Communicator& whole, const std::vector<int>& members) : whole_(whole), members_(members) {}

  std::vector<std::string> exchange(const World& world, const std::string& tag, const std::string& blob,
                                    Deadline) override {
    const auto all = whole_.all_gather_blobs("+" + blob, "split");
    std::vector<std::string> blobs;
    for (const int r : members_) {
      if (all[r][0] != '+')
        throw CommError(CommError::Kind::kAborted, "split", {r}, world.generation,
                        "split: rank " + std::to_string(r) + " gave up before " + tag);
      blobs.push_back(all[r].substr(1));
    }
    return blobs;
  }

  /// Returns once every rank is through: what went wrong, by rank.
  std::vector<std::string> finish(const std::string& why) {
    while (true) {
      auto all = whole_.all_gather_blobs("-" + why, "split");
      if (std::any_of(all.begin(), all.end(), [](const std::string& blob) { return blob[0] == '+'; })) continue;
      for (std::string& blob : all) blob.erase(0, 1);
      return all;
    }
  }

 private:
  Communicator& whole_;
  const std::vector<int>& members_;
};

/// Makes failures of a part those of the whole. Handles of calls may outlive both.
class Link {
 public:
  Link(Communicator* whole, std::vector<int> members) : whole_(whole), members_(std::move(members)) {}

  void cut() {
    MutexLock lock(mutex_);
    whole_ = nullptr;
  }

  template <class Body>
  auto guard(const Body& body) {
    try {
      return body();
    } catch (const CommError& error) {
      rethrow(error);
    }
  }

 private:
  [[noreturn]] void rethrow(const CommError& error) {
    MutexLock lock(mutex_);
    if (whole_)
      if (const std::exception_ptr first = whole_->failure()) std::rethrow_exception(first);
    std::vector<int> ranks;
    for (const int r : error.ranks()) ranks.push_back(members_[static_cast<std::size_t>(r)]);
    const CommError translated(error.kind(), error.operation(), ranks, error.generation(),
                               "among " + list_ranks(members_) + ", counted from 0: " + error.what());
    if (whole_) whole_->report(translated);
    throw translated;
  }

  Mutex mutex_;
  Communicator* whole_ BELLOWS_GUARDED_BY(mutex_);
  const std::vector<int> members_;
};

class LinkedState final : public Work::State {
 public:
  LinkedState(std::shared_ptr<Link> link, Work work) : link_(std::move(link)), work_(std::move(work)) {}
  bool done() const override { return work_.done(); }
  void wait() override {
    link_->guard([&] { work_.wait(); });
  }
  Nanos finished_at() const override { return work_.finished_at(); }

 private:
  const std::shared_ptr<Link> link_;
  const Work work_;
};

}  // namespace

/// Passes calls on to the communicator of the part, and failures to that of the whole.
class PartCommunicator final : public Communicator {
 public:
  PartCommunicator(Communicator& whole, std::unique_ptr<Communicator> part, std::vector<int> members)
      : whole_(whole), part_(std::move(part)), link_(std::make_shared<Link>(&whole, std::move(members))) {
    MutexLock lock(whole_.parts_mutex_);
    whole_.parts_.push_back(this);
  }
  ~PartCommunicator() override {
    link_->cut();
    MutexLock lock(whole_.parts_mutex_);
    std::erase(whole_.parts_, this);
  }

  const World& world() const override { return part_->world(); }
  const char* transport() const override { return part_->transport(); }

  Window expose(const SharedMemory& memory, std::size_t offset, std::size_t bytes) override {
    return link_->guard([&] { return part_->expose(memory, offset, bytes); });
  }
  Window expose_device(const Buffer& memory, std::size_t offset, std::size_t bytes) override {
    return link_->guard([&] { return part_->expose_device(memory, offset, bytes); });
  }
  Buffer allocate_window(Device& device, std::size_t bytes) override { return part_->allocate_window(device, bytes); }
  Work reduce_scatter(ReduceScatterArgs args) override {
    return linked([&] { return part_->reduce_scatter(std::move(args)); });
  }
  Work all_gather(AllGatherArgs args) override {
    return linked([&] { return part_->all_gather(std::move(args)); });
  }
  Work all_reduce(AllReduceArgs args) override {
    return linked([&] { return part_->all_reduce(std::move(args)); });
  }
  void all_reduce_sum(std::span<double> data, const char* what) override {
    link_->guard([&] { part_->all_reduce_sum(data, what); });
  }
  std::vector<std::string> all_gather_blobs(const std::string& blob, const char* what) override {
    return link_->guard([&] { return part_->all_gather_blobs(blob, what); });
  }
  void broadcast(std::span<std::byte> data, int root, const char* what) override {
    link_->guard([&] { part_->broadcast(data, root, what); });
  }
  void all_to_all_v(const std::vector<std::span<const std::byte>>& send,
                    const std::vector<std::span<std::byte>>& receive, const char* what) override {
    link_->guard([&] { part_->all_to_all_v(send, receive, what); });
  }
  void barrier(const char* what) override {
    link_->guard([&] { part_->barrier(what); });
  }

  void abort(const std::string& why) override { whole_.abort(why); }  // comes back as abort_here
  void report(const CommError& error) override { whole_.report(error); }
  std::exception_ptr failure() const override {
    const std::exception_ptr first = whole_.failure();
    return first ? first : part_->failure();
  }
  CommStats stats() const override { return part_->stats(); }

  void abort_here(const std::string& why) {
    part_->abort(why);
    abort_parts(why);
  }

 private:
  template <class Start>
  Work linked(const Start& start) {
    return Work(std::make_shared<LinkedState>(link_, link_->guard(start)));
  }

  Communicator& whole_;
  const std::unique_ptr<Communicator> part_;
  const std::shared_ptr<Link> link_;
};

void Communicator::abort_parts(const std::string& why) {
  MutexLock lock(parts_mutex_);
  for (PartCommunicator* const part : parts_) part->abort_here(why);
}

std::unique_ptr<Communicator> split(Communicator& parent, int color, const CommOptions& options) {
  const World& whole = parent.world();
  const std::string host = introduce_this_process().host;
  const auto said = parent.all_gather_blobs(std::to_string(color) + " " + host, "split");
  std::vector<int> members;
  World world{0, 0, 0, 0, whole.generation};
  for (int r = 0; r < whole.world_size; ++r) {
    if (color < 0 || std::stoi(said[r]) != color) continue;
    const bool here = said[r].substr(said[r].find(' ') + 1) == host;
    if (r == whole.rank) world.rank = world.world_size, world.local_rank = world.local_size;
    world.world_size += 1;
    world.local_size += here ? 1 : 0;
    members.push_back(r);
  }
  PartBootstrap bootstrap(parent, members);
  std::unique_ptr<Communicator> part;
  std::exception_ptr failure;
  std::string why;
  if (color >= 0) {
    try {
      part = connect(world, bootstrap, options);
    } catch (const std::exception& error) {
      failure = std::current_exception();
      why = error.what();
    }
  }
  const auto outcome = bootstrap.finish(why);
  if (failure) std::rethrow_exception(failure);
  for (int r = 0; r < whole.world_size; ++r)
    if (!outcome[r].empty())
      throw CommError(CommError::Kind::kAborted, "split", {r}, whole.generation,
                      "split: rank " + std::to_string(r) + " could not connect: " + outcome[r]);
  if (!part) return nullptr;
  return std::make_unique<PartCommunicator>(parent, std::move(part), std::move(members));
}

}  // namespace bellows
