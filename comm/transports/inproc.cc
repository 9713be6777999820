#include <map>
#include <stdexcept>

#include "bellows/base/mutex.h"
#include "transports/transport.h"

namespace bellows {
namespace {

// Threads of one process find each other's segments here. Entries do not keep a segment alive.
struct Segments {
  Mutex mutex;
  std::map<std::uint64_t, std::weak_ptr<SharedMemory>> by_token BELLOWS_GUARDED_BY(mutex);
  std::uint64_t next BELLOWS_GUARDED_BY(mutex) = 1;
};
Segments& segments() {
  static Segments instance;
  return instance;
}

class InprocReach final : public Reach {
 public:
  InprocReach(const World& world, const std::vector<Introduction>& ranks) {
    MutexLock lock(segments().mutex);
    for (int r = 0; r < world.world_size; ++r) {
      const auto it = segments().by_token.find(ranks[r].token);
      Segment segment = it == segments().by_token.end() ? nullptr : it->second.lock();
      if (!segment) throw UnreachablePeer{r, "gave up before it was connected"};
      controls_.push_back(std::move(segment));
    }
  }
  Control* control(int rank) override { return reinterpret_cast<Control*>(controls_[rank]->data()); }
  std::byte* window(int, const WindowPlace& place) override { return place.address; }
  bool alive(int) override { return true; }   // a thread that goes says so when its communicator is dropped
  bool fence(int) override { return false; }  // a thread goes on, or its process is stopped as a whole
  bool shares_address_space() const override { return true; }
  std::string describe(int) const override { return "thread"; }

 private:
  std::vector<Segment> controls_;
};

}  // namespace

std::uint64_t publish_segment(const Segment& segment) {
  MutexLock lock(segments().mutex);
  std::erase_if(segments().by_token, [](const auto& entry) { return entry.second.expired(); });
  const std::uint64_t token = segments().next++;
  segments().by_token[token] = segment;
  return token;
}

std::string inproc_unfit(const std::vector<Introduction>& ranks) {
  for (std::size_t r = 1; r < ranks.size(); ++r)
    if (ranks[r].machine != ranks[0].machine || ranks[r].pid != ranks[0].pid ||
        ranks[r].start_time != ranks[0].start_time)
      return "ranks 0 and " + std::to_string(r) + " are not threads of one process";
  return "";
}

std::unique_ptr<Reach> make_inproc_reach(const World& world, const std::vector<Introduction>& ranks, Segment) {
  return std::make_unique<InprocReach>(world, ranks);
}

}  // namespace bellows
