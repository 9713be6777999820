#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace bellows {

/// How the parts of a collective travel between ranks. All of them give the same bits: partial sums are only ever added
/// where they are neighbours in the lane tree.
enum class Algorithm {
  kDirect,        ///< everybody to the owner in one hop
  kRing,          ///< from neighbour to neighbour around all ranks
  kHalving,       ///< recursive halving (reduce) and doubling (gather); powers of two only
  kHierarchical,  ///< inside the host first, one exchange between hosts per owner
};
const char* name_of(Algorithm algorithm);
/// Throws UserError for a name that is none, listing those that are.
Algorithm algorithm_by_name(const std::string& name);
const std::vector<Algorithm>& all_algorithms();

/// Where ranks stand: as much of the topology as routes depend on. The same value on every rank.
struct Places {
  std::vector<int> host;  ///< by rank; hosts are numbered from 0
  int world_size() const { return static_cast<int>(host.size()); }
  int hosts() const;
  std::vector<int> ranks_on(int host) const;
  static Places one_host(int world_size) { return {std::vector<int>(world_size, 0)}; }
};

/// For each owner, the ranks form a tree with the owner at its root: partial sums climb it (reduce-scatter), gathered
/// data descends it (all-gather).
class Routes {
 public:
  /// Throws std::invalid_argument if the algorithm cannot serve such a world.
  Routes(Algorithm algorithm, Places places);

  Algorithm algorithm() const { return algorithm_; }
  int world_size() const { return places_.world_size(); }
  /// The next rank from `rank` towards `owner`; `owner` itself for `owner`.
  int next(int owner, int rank) const;
  /// The ranks whose next is `rank`, ascending.
  std::vector<int> children(int owner, int rank) const;
  /// Hops from `rank` to `owner`.
  int depth(int owner, int rank) const;
  /// Hops from `rank` to the farthest rank below it.
  int height(int owner, int rank) const;

 private:
  Algorithm algorithm_;
  Places places_;
  std::vector<std::vector<int>> on_host_;  // hierarchical
  std::vector<int> slot_;                  // of a rank on its host
};

/// Empty if the algorithm can serve such a world, else why not.
std::string unfit(Algorithm algorithm, const Places& places);

}  // namespace bellows
