#include "routed/cost_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <set>
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
    return sent + link_of(message).delay_s + (crowd_ > 1 ? costs_.wake_s : 0);
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

// What bytes inside a host cost in vectors of that size: between those that caches hold and those that they don't, the
// logarithm of the one goes with the logarithm of the other.
CollectiveCosts at_size(const CollectiveCosts& all, std::size_t bytes) {
  const double beyond = std::clamp((std::log2(static_cast<double>(bytes)) - 20) / 4, 0.0, 1.0);
  const double factor = std::pow(all.beyond_cache, beyond);
  CollectiveCosts costs = {all.near, all.far, all.add_s, all.copy_s, all.wake_s, 1, {}};
  costs.near.byte_s *= factor;
  costs.near.added_byte_s *= factor;
  return costs;
}

// How far the model was off in the measured calls that are most like this one: of the nearest number of ranks, between
// the sizes on either side.
double correction(CostedCall call, Algorithm algorithm, int ranks, std::size_t bytes, const CollectiveCosts& costs) {
  const auto octaves = [](double a, double b) { return std::abs(std::log2(a / b)); };
  std::map<std::size_t, double> factors;  // by bytes
  int nearest = 0;
  for (const ModelError& error : costs.errors) {
    if (error.call != call || error.algorithm != name_of(algorithm)) continue;
    if (nearest != error.ranks) {
      if (nearest != 0 && octaves(ranks, error.ranks) >= octaves(ranks, nearest)) continue;
      nearest = error.ranks;
      factors.clear();
    }
    factors[error.bytes] = error.factor;
  }
  if (factors.empty()) return 1;
  const auto above = factors.lower_bound(bytes);
  if (above == factors.begin()) return above->second;
  const auto below = std::prev(above);
  if (above == factors.end()) return below->second;
  const double way = octaves(static_cast<double>(bytes), static_cast<double>(below->first)) /
                     octaves(static_cast<double>(above->first), static_cast<double>(below->first));
  return std::pow(below->second, 1 - way) * std::pow(above->second, way);
}

double predict_one(CostedCall call, const Routes& routes, const Places& places, std::size_t bytes,
                   const CollectiveCosts& all_costs, double ranks_per_core) {
  const bool reduces = call == CostedCall::kReduceScatter;
  const int n = places.world_size();
  const std::size_t share = (bytes + n - 1) / n, segment = std::min(share, segment_bytes(share, n));
  if (share == 0) return 0;
  const CollectiveCosts costs = at_size(all_costs, bytes);
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
  return places.hosts() > 1 ? seconds : seconds * correction(call, routes.algorithm(), n, bytes, all_costs);
}

// Of all algorithms that can serve these places; `distinct`: without those whose trees are those of one before them.
std::vector<Routes> fitting_routes(const Places& places, bool distinct) {
  std::vector<Routes> fitting;
  std::set<std::vector<int>> known;
  for (const Algorithm algorithm : all_algorithms()) {
    if (!unfit(algorithm, places).empty()) continue;
    Routes routes(algorithm, places);
    std::vector<int> trees;
    for (int owner = 0; owner < places.world_size(); ++owner)
      for (int rank = 0; rank < places.world_size(); ++rank) trees.push_back(routes.next(owner, rank));
    if (known.insert(std::move(trees)).second || !distinct) fitting.push_back(std::move(routes));
  }
  return fitting;
}

}  // namespace

double predict(CostedCall call, const Routes& routes, const Places& places, std::size_t bytes,
               const CollectiveCosts& costs, double ranks_per_core) {
  double seconds = 0;
  for (const CostedCall half : {CostedCall::kReduceScatter, CostedCall::kAllGather})
    if (call == half || call == CostedCall::kAllReduce)
      seconds += predict_one(half, routes, places, bytes, costs, ranks_per_core);
  return seconds;
}

Algorithm cheapest(CostedCall call, const Places& places, std::size_t bytes, const CollectiveCosts& costs,
                   double ranks_per_core) {
  if (places.world_size() > kModelledRanks)
    return places.hosts() > 1 && places.hosts() < places.world_size() ? Algorithm::kHierarchical : Algorithm::kDirect;
  Algorithm best = Algorithm::kDirect;
  double least = std::numeric_limits<double>::infinity();
  for (const Routes& routes : fitting_routes(places, true)) {
    const double seconds = predict(call, routes, places, bytes, costs, ranks_per_core);
    if (seconds < least) best = routes.algorithm(), least = seconds;
  }
  return best;
}

// ---- For other rooms, by name ----

std::vector<std::string> fitting_algorithms(const CostedWorld& world, bool distinct) {
  std::vector<std::string> names;
  for (const Routes& routes : fitting_routes(Places{world.host}, distinct))
    names.push_back(name_of(routes.algorithm()));
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
