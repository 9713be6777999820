#include "routed/routes.h"

#include <algorithm>
#include <stdexcept>

#include "bellows/base/error.h"

namespace bellows {

const char* name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kDirect:
      return "direct";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kHalving:
      return "halving";
    case Algorithm::kHierarchical:
      return "hierarchical";
  }
  return "?";
}

const std::vector<Algorithm>& all_algorithms() {
  static const std::vector<Algorithm> all = {Algorithm::kDirect, Algorithm::kRing, Algorithm::kHalving,
                                             Algorithm::kHierarchical};
  return all;
}

Algorithm algorithm_by_name(const std::string& name) {
  std::string known;
  for (const Algorithm algorithm : all_algorithms()) {
    if (name == name_of(algorithm)) return algorithm;
    known += std::string(known.empty() ? "" : ", ") + name_of(algorithm);
  }
  throw UserError("unknown algorithm '" + name + "'; known: auto, " + known);
}

int Places::hosts() const { return host.empty() ? 0 : *std::max_element(host.begin(), host.end()) + 1; }

std::vector<int> Places::ranks_on(int which) const {
  std::vector<int> ranks;
  for (int r = 0; r < world_size(); ++r)
    if (host[r] == which) ranks.push_back(r);
  return ranks;
}

std::string unfit(Algorithm algorithm, const Places& places) {
  const int n = places.world_size();
  if (algorithm == Algorithm::kHalving && (n & (n - 1)) != 0)
    return "halving needs a power of two, not " + std::to_string(n) + " ranks";
  return {};
}

Routes::Routes(Algorithm algorithm, Places places) : algorithm_(algorithm), places_(std::move(places)) {
  if (const std::string why = unfit(algorithm_, places_); !why.empty()) throw std::invalid_argument(why);
  slot_.resize(places_.host.size());
  for (int h = 0; h < places_.hosts(); ++h) {
    on_host_.push_back(places_.ranks_on(h));
    for (std::size_t i = 0; i < on_host_[h].size(); ++i) slot_[on_host_[h][i]] = static_cast<int>(i);
  }
}

int Routes::next(int owner, int rank) const {
  if (rank == owner) return owner;
  switch (algorithm_) {
    case Algorithm::kDirect:
      return owner;
    case Algorithm::kRing:
      return (rank + 1) % world_size();
    case Algorithm::kHalving: {
      // The nearest neighbours first: 0 with 1, 2 with 3; so what meets is what the lane tree adds first.
      const int differing = rank ^ owner;
      return rank ^ (differing & -differing);
    }
    case Algorithm::kHierarchical: {
      if (places_.host[rank] == places_.host[owner]) return owner;
      // On every other host one rank collects for this owner; owners are spread over the ranks of the host.
      const std::vector<int>& neighbours = on_host_[places_.host[rank]];
      const int collector = neighbours[static_cast<std::size_t>(slot_[owner]) % neighbours.size()];
      return rank == collector ? owner : collector;
    }
  }
  return owner;
}

std::vector<int> Routes::children(int owner, int rank) const {
  std::vector<int> result;
  const auto take = [&](int r) {
    if (r != owner && r != rank && next(owner, r) == rank) result.push_back(r);
  };
  if (algorithm_ == Algorithm::kRing) {
    take((rank + world_size() - 1) % world_size());
  } else if (algorithm_ == Algorithm::kDirect && rank != owner) {
    return result;
  } else {
    for (int r = 0; r < world_size(); ++r) take(r);
  }
  return result;
}

int Routes::depth(int owner, int rank) const {
  int hops = 0;
  for (int r = rank; r != owner; r = next(owner, r)) ++hops;
  return hops;
}

int Routes::height(int owner, int rank) const {
  int tallest = 0;
  for (const int child : children(owner, rank)) tallest = std::max(tallest, 1 + height(owner, child));
  return tallest;
}

}  // namespace bellows
