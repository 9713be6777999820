#include "routed/cost_model.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <vector>

#include "fold.h"
#include "routed/plans.h"

namespace bellows {
namespace {

struct Message {
  int level = 0;  // of the tree: a message of one level needs only those of lower ones
  int from = 0, to = 0;
  std::vector<int> owners;
  double parts = 0;  // partial sums of one segment, over all owners
};

/// The messages of one wave (a segment of every owner), in the order in which levels and plans send them.
class Wave {
 public:
  Wave(const Routes& routes, bool reduces) : n_(routes.world_size()) {
    std::map<std::tuple<int, int, int, int>, Message> messages;  // level, turn, from, to
    spans_.resize(static_cast<std::size_t>(n_) * n_);
    sources_.assign(static_cast<std::size_t>(n_) * n_, 1);
    for (int owner = 0; owner < n_; ++owner) {
      std::vector<int> depth(n_), height(n_), order(n_);
      for (int r = 0; r < n_; ++r) depth[r] = routes.depth(owner, r), order[r] = r;
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return depth[a] > depth[b]; });
      for (const int r : order) {
        if (reduces) settle(owner, r);
        if (r == owner) continue;
        const int next = routes.next(owner, r);
        height[next] = std::max(height[next], height[r] + 1);
        if (reduces) pass_on(owner, r, next);
        const int from = reduces ? r : next, to = reduces ? next : r;
        const int level = reduces ? height[r] : depth[next];
        Message& message = messages[{level, (to - from + n_) % n_, from, to}];
        message.level = level, message.from = from, message.to = to;
        message.owners.push_back(owner);
        message.parts += reduces ? static_cast<double>(spans(owner, r).size()) : 1;
      }
    }
    for (auto& [key, message] : messages) this->messages.push_back(std::move(message));
  }

  /// Partial sums that rank `r` adds up for `owner`; 1 if it only has its own.
  int sources(int owner, int r) const { return sources_[index(owner, r)]; }

  std::vector<Message> messages;

 private:
  std::size_t index(int owner, int r) const { return static_cast<std::size_t>(owner) * n_ + r; }
  std::vector<LaneSpan>& spans(int owner, int r) { return spans_[index(owner, r)]; }
  /// All below have passed theirs on: what is left when neighbours of the lane tree are added.
  void settle(int owner, int r) {
    auto& mine = spans(owner, r);
    mine.push_back({r, 1});
    std::sort(mine.begin(), mine.end(), [](LaneSpan a, LaneSpan b) { return a.first < b.first; });
    sources_[index(owner, r)] = static_cast<int>(mine.size());
    mine = make_fold(mine, false).spans;
  }
  void pass_on(int owner, int r, int next) {
    const auto& mine = spans(owner, r);
    auto& theirs = spans(owner, next);
    theirs.insert(theirs.end(), mine.begin(), mine.end());
  }

  const int n_;
  std::vector<std::vector<LaneSpan>> spans_;  // what a rank sends towards an owner
  std::vector<int> sources_;
};

/// Who is busy with what until when.
class Play {
 public:
  Play(const Wave& wave, bool reduces, const Places& places, const CollectiveCosts& costs, double ranks_per_core)
      : wave_(wave),
        reduces_(reduces),
        places_(places),
        costs_(costs),
        n_(places.world_size()),
        crowd_(std::max(1.0, ranks_per_core)),
        free_(n_),
        out_(places.hosts()),
        in_(places.hosts()) {}

  /// One wave with segments of `bytes`: until when the last rank is at it.
  double run(double bytes) {
    bytes_ = bytes;
    const std::size_t count = wave_.messages.size();
    std::vector<int> waits(count);  // for so many arrivals
    std::vector<double> ready(count), whole(n_);
    std::map<std::pair<int, int>, std::vector<int>> onward;  // (owner, rank) -> what it sends of that
    for (std::size_t m = 0; m < count; ++m)
      for (const int owner : wave_.messages[m].owners)
        onward[{owner, wave_.messages[m].from}].push_back(static_cast<int>(m));
    for (const Message& message : wave_.messages)
      for (const int owner : message.owners)
        if (const auto it = onward.find({owner, message.to}); it != onward.end())
          for (const int m : it->second) ++waits[m];
    for (std::size_t m = 0; m < count; ++m)
      if (waits[m] == 0) coming_.push({0, ++turn_, static_cast<int>(m), true});
    while (!coming_.empty()) {
      const Event event = coming_.top();
      coming_.pop();
      const Message& message = wave_.messages[event.message];
      if (event.is_send) {
        coming_.push({send(message, event.at), ++turn_, event.message, false});
        continue;
      }
      const double arrived = occupy(free_[message.to], event.at, handling(message) * crowd_);
      for (const int owner : message.owners) {
        if (owner == message.to) whole[owner] = std::max(whole[owner], arrived);
        if (const auto it = onward.find({owner, message.to}); it != onward.end())
          for (const int m : it->second) {
            ready[m] = std::max(ready[m], arrived);
            if (--waits[m] == 0) coming_.push({ready[m], ++turn_, m, true});
          }
      }
    }
    if (reduces_)
      for (int r = 0; r < n_; ++r) occupy(free_[r], whole[r], costs_.add_s * bytes * wave_.sources(r, r) * crowd_);
    return *std::max_element(free_.begin(), free_.end());
  }

  /// The longest that one rank, or one host's way in or out, has been at work.
  double busiest() const { return busiest_; }

 private:
  struct Resource {
    double until = 0, busy = 0;
    operator double() const { return until; }
  };
  /// A message that may be sent, or has come, first of all at that time.
  struct Event {
    double at = 0;
    int turn = 0;  // among those of one time, in the order in which they came up
    int message = 0;
    bool is_send = false;
    bool operator>(const Event& other) const { return std::tie(at, turn) > std::tie(other.at, other.turn); }
  };

  bool is_far(const Message& message) const { return places_.host[message.from] != places_.host[message.to]; }
  const LinkCosts& link_of(const Message& message) const { return is_far(message) ? costs_.far : costs_.near; }
  double carrying(const Message& message) const {
    return message.parts * bytes_ * (reduces_ ? link_of(message).added_byte_s : link_of(message).byte_s);
  }
  double packing(const Message& message) const {
    return message.owners.size() > 1 ? costs_.copy_s * bytes_ * message.parts : 0;
  }
  /// Returns when it has come to the receiver's host.
  double send(const Message& message, double from) {
    double work = link_of(message).message_s / 2 + (reduces_ ? 0 : packing(message));
    for (const int owner : message.owners) {
      if (!reduces_) break;
      const int sources = wave_.sources(owner, message.from);
      if (sources > 1)
        work += costs_.add_s * bytes_ * sources;
      else if (message.owners.size() > 1)
        work += costs_.copy_s * bytes_;
    }
    double sent = occupy(free_[message.from], from, work * crowd_);
    if (is_far(message)) {
      const double carried = carrying(message);
      sent = occupy(out_[places_.host[message.from]], sent, carried);
      sent = occupy(in_[places_.host[message.to]], sent - carried, carried);
    }
    return crowd_ > 1 ? sent + costs_.wake_s : sent;
  }
  /// By the receiver; inside a host it also fetches the bytes.
  double handling(const Message& message) const {
    return link_of(message).message_s / 2 + (is_far(message) ? 0 : carrying(message)) +
           (reduces_ ? 0 : packing(message));
  }
  double occupy(Resource& resource, double from, double work) {
    resource.until = std::max(resource.until, from) + work;
    resource.busy += work;
    busiest_ = std::max(busiest_, resource.busy);
    return resource.until;
  }

  const Wave& wave_;
  const bool reduces_;
  const Places& places_;
  const CollectiveCosts& costs_;
  const int n_;
  const double crowd_;
  std::vector<Resource> free_, out_, in_;
  double busiest_ = 0, bytes_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> coming_;
  int turn_ = 0;
};

double predict_one(bool reduces, const Routes& routes, const Places& places, std::size_t bytes,
                   const CollectiveCosts& costs, double ranks_per_core) {
  const int n = places.world_size();
  const std::size_t share = (bytes + n - 1) / n, segment = std::min(share, segment_bytes(share, n));
  if (share == 0) return 0;
  const Wave wave(routes, reduces);
  const auto play = [&](std::size_t of) {
    Play one(wave, reduces, places, costs, ranks_per_core);
    const double end = one.run(static_cast<double>(of));
    return std::pair(end, one.busiest());
  };
  const std::size_t waves = share / segment, rest = share % segment;
  const auto [first, busy] = play(segment);
  double seconds = first + static_cast<double>(waves - 1) * busy;
  if (rest > 0) seconds += play(rest).second;
  return seconds;
}

}  // namespace

double predict(CostedCall call, const Routes& routes, const Places& places, std::size_t bytes,
               const CollectiveCosts& costs, double ranks_per_core) {
  double seconds = 0;
  if (call != CostedCall::kAllGather) seconds += predict_one(true, routes, places, bytes, costs, ranks_per_core);
  if (call != CostedCall::kReduceScatter) seconds += predict_one(false, routes, places, bytes, costs, ranks_per_core);
  return seconds;
}

Algorithm cheapest(CostedCall call, const Places& places, std::size_t bytes, const CollectiveCosts& costs,
                   double ranks_per_core) {
  if (places.world_size() > kModelledRanks)
    return places.hosts() > 1 && places.hosts() < places.world_size() ? Algorithm::kHierarchical : Algorithm::kDirect;
  Algorithm best = Algorithm::kDirect;
  double least = 0;
  for (const Algorithm algorithm : all_algorithms()) {
    if (!unfit(algorithm, places).empty()) continue;
    const double seconds = predict(call, Routes(algorithm, places), places, bytes, costs, ranks_per_core);
    if (algorithm != all_algorithms().front() && seconds >= least) continue;
    best = algorithm, least = seconds;
  }
  return best;
}

// ---- For other rooms, by name ----

std::vector<std::string> fitting_algorithms(const CostedWorld& world) {
  std::vector<std::string> names;
  for (const Algorithm algorithm : all_algorithms())
    if (unfit(algorithm, Places{world.host}).empty()) names.push_back(name_of(algorithm));
  return names;
}

double predicted_seconds(CostedCall call, const std::string& algorithm, std::size_t bytes, const CostedWorld& world,
                         const CollectiveCosts& costs) {
  const Places places{world.host};
  return predict(call, Routes(algorithm_by_name(algorithm), places), places, bytes, costs, world.ranks_per_core);
}

std::string cheapest_algorithm(CostedCall call, std::size_t bytes, const CostedWorld& world,
                               const CollectiveCosts& costs) {
  return name_of(cheapest(call, Places{world.host}, bytes, costs, world.ranks_per_core));
}

}  // namespace bellows
