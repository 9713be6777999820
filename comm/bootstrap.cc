#include "bellows/comm/bootstrap.h"

#include <map>
#include <optional>
#include <tuple>

#include "bellows/base/error.h"
#include "bellows/base/mutex.h"
#include "group.h"

namespace bellows {

struct InprocBootstrap::Impl {
  // The n-th exchange of one tag in one generation meets the n-th of the other ranks.
  using Key = std::tuple<std::uint64_t, int, std::string, int>;  // generation, world_size, tag, turn
  struct Meeting {
    std::vector<std::optional<std::string>> blobs;
    int arrived = 0;
    int taken = 0;
  };
  Mutex mutex;
  CondVar changed;
  std::map<Key, Meeting> meetings BELLOWS_GUARDED_BY(mutex);
  std::map<Key, int> turns BELLOWS_GUARDED_BY(mutex);  // here the last field is the rank
};

InprocBootstrap::InprocBootstrap() : impl_(std::make_unique<Impl>()) {}
InprocBootstrap::~InprocBootstrap() = default;

std::vector<std::string> InprocBootstrap::exchange(const World& world, const std::string& tag, const std::string& blob,
                                                   Deadline deadline) {
  MutexLock lock(impl_->mutex);
  const int turn = impl_->turns[{world.generation, world.world_size, tag, world.rank}]++;
  const Impl::Key key{world.generation, world.world_size, tag, turn};
  Impl::Meeting& meeting = impl_->meetings[key];
  meeting.blobs.resize(world.world_size);
  if (!meeting.blobs[world.rank]) ++meeting.arrived;
  meeting.blobs[world.rank] = blob;
  impl_->changed.notify_all();
  while (meeting.arrived < world.world_size) {
    if (deadline.passed()) {
      std::vector<int> missing;
      for (int r = 0; r < world.world_size; ++r)
        if (!meeting.blobs[r]) missing.push_back(r);
      throw CommError(CommError::Kind::kTimeout, "exchange " + tag, missing, world.generation,
                      "exchange " + tag + ": " + list_ranks(missing) + " did not arrive in time (generation " +
                          std::to_string(world.generation) + ")");
    }
    impl_->changed.wait_for(impl_->mutex, std::chrono::nanoseconds(std::max<Nanos>(deadline.remaining(), 1)));
  }
  std::vector<std::string> blobs;
  for (const auto& one : meeting.blobs) blobs.push_back(*one);
  if (++meeting.taken == world.world_size) impl_->meetings.erase(key);
  return blobs;
}

}  // namespace bellows
