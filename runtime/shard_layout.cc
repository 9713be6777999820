#include "bellows/runtime/shard_layout.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <sstream>

#include "bellows/base/error.h"

namespace bellows {
namespace {

// About a thousand chunks, so that shards of any world balance to a fraction of a percent and resizing moves little
// more than it must; never so small that a chunk is less than a page, never so large that it is slow to move.
std::size_t default_chunk(std::size_t total) {
  return std::clamp<std::size_t>(std::bit_floor(std::max<std::size_t>(total / 1024, 1)), 1024, std::size_t{1} << 20);
}

// How many chunks of a unit each rank should own: equal shares, the remainder to ranks that have little in total, and
// among those to ranks that hold more than their share already (each such choice saves a move).
std::vector<std::size_t> quotas(std::size_t chunks, const std::vector<std::size_t>& held,
                                const std::vector<std::size_t>& totals, std::size_t slack) {
  const std::size_t world = held.size();
  std::vector<std::size_t> quota(world, chunks / world);
  std::vector<std::size_t> order(world);
  std::iota(order.begin(), order.end(), 0);
  const std::size_t least = *std::min_element(totals.begin(), totals.end());
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const bool heavy_a = totals[a] > least + slack, heavy_b = totals[b] > least + slack;
    if (heavy_a != heavy_b) return heavy_b;
    const bool more_a = held[a] > quota[a], more_b = held[b] > quota[b];
    if (more_a != more_b) return more_a;
    return totals[a] < totals[b];
  });
  for (std::size_t i = 0; i < chunks % world; ++i) ++quota[order[i]];
  return quota;
}

}  // namespace

ChunkTable::ChunkTable(const ParameterSet& parameters) : ChunkTable(parameters, default_chunk(parameters.total())) {}

ChunkTable::ChunkTable(const ParameterSet& parameters, std::size_t chunk_elements) : chunk_elements_(chunk_elements) {
  BELLOWS_CHECK_GT(chunk_elements, std::size_t{0});
  for (const Unit& unit : parameters.units()) {
    const std::size_t first = chunks_.size();
    for (std::size_t at = 0; at < unit.count; at += chunk_elements)
      chunks_.push_back({unit.begin + at, unit.begin + std::min(at + chunk_elements, unit.count)});
    units_.push_back({first, chunks_.size()});
  }
}

std::size_t ChunkTable::find(std::size_t element) const {
  const auto it = std::partition_point(chunks_.begin(), chunks_.end(), [&](Interval c) { return c.end <= element; });
  return static_cast<std::size_t>(it - chunks_.begin());
}

ShardLayout::ShardLayout(const ChunkTable& chunks, int world_size)
    : ShardLayout(ShardLayout(std::vector<int>(chunks.size(), -1), world_size)
                      .for_world(chunks, std::vector<int>(world_size, -1), world_size)) {}

ShardLayout ShardLayout::for_world(const ChunkTable& chunks, const std::vector<int>& new_rank, int world_size) const {
  BELLOWS_CHECK_EQ(owners_.size(), chunks.size());
  std::vector<int> owners(chunks.size(), -1);
  std::vector<std::size_t> totals(world_size, 0);
  for (int u = 0; u < chunks.units(); ++u) {
    const Interval unit = chunks.of_unit(u);
    std::vector<std::size_t> held(world_size, 0);
    const auto survivor = [&](std::size_t c) { return owners_[c] < 0 ? -1 : new_rank[owners_[c]]; };
    for (std::size_t c = unit.begin; c < unit.end; ++c)
      if (survivor(c) >= 0) ++held[survivor(c)];
    std::vector<std::size_t> left = quotas(unit.size(), held, totals, chunks.chunk_elements());
    for (std::size_t c = unit.begin; c < unit.end; ++c)
      if (const int rank = survivor(c); rank >= 0 && left[rank] > 0) owners[c] = rank, --left[rank];
    // Runs go to the lightest rank first, so that the heaviest gets the unit's last, smaller chunk.
    std::vector<int> order(world_size);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return totals[a] < totals[b]; });
    auto next = order.begin();
    for (std::size_t c = unit.begin; c < unit.end; ++c) {
      if (owners[c] < 0) {
        while (left[*next] == 0) ++next;
        owners[c] = *next;
        --left[*next];
      }
    }
    for (std::size_t c = unit.begin; c < unit.end; ++c) totals[owners[c]] += chunks[c].size();
  }
  return ShardLayout(std::move(owners), world_size);
}

std::vector<int> ShardLayout::owned(int rank) const {
  std::vector<int> result;
  for (std::size_t c = 0; c < owners_.size(); ++c)
    if (owners_[c] == rank) result.push_back(static_cast<int>(c));
  return result;
}

std::size_t ShardLayout::elements(const ChunkTable& chunks, int rank) const {
  std::size_t sum = 0;
  for (std::size_t c = 0; c < owners_.size(); ++c)
    if (owners_[c] == rank) sum += chunks[c].size();
  return sum;
}

// "world chunks owner*run owner*run ..."
std::string ShardLayout::encode() const {
  std::ostringstream out;
  out << world_size_ << ' ' << owners_.size();
  for (std::size_t c = 0; c < owners_.size();) {
    std::size_t end = c;
    while (end < owners_.size() && owners_[end] == owners_[c]) ++end;
    out << ' ' << owners_[c] << ' ' << end - c;
    c = end;
  }
  return out.str();
}

ShardLayout ShardLayout::decode(const std::string& text) {
  std::istringstream in(text);
  int world = 0;
  std::size_t count = 0;
  in >> world >> count;
  std::vector<int> owners;
  int owner = 0;
  for (std::size_t run = 0; owners.size() < count && in >> owner >> run;) {
    BELLOWS_CHECK_LE(owners.size() + run, count);
    owners.insert(owners.end(), run, owner);
  }
  BELLOWS_CHECK_EQ(owners.size(), count);
  return ShardLayout(std::move(owners), world);
}

ReshardPlan reshard_plan(const std::vector<std::vector<int>>& holds, const std::vector<std::vector<int>>& needs) {
  int chunks = 0;
  for (const auto& sets : {&holds, &needs})
    for (const auto& set : *sets)
      if (!set.empty()) chunks = std::max(chunks, set.back() + 1);
  const int ranks = static_cast<int>(holds.size());
  std::vector<std::vector<int>> holders(chunks);
  for (int rank = 0; rank < ranks; ++rank)
    for (const int chunk : holds[rank]) holders[chunk].push_back(rank);

  ReshardPlan plan;
  std::vector<std::size_t> sends(ranks, 0);
  std::vector<char> missing(chunks, 0);
  for (int to = 0; to < ranks; ++to) {
    for (const int chunk : needs[to]) {
      const auto& from = holders[chunk];
      if (std::find(from.begin(), from.end(), to) != from.end()) continue;
      if (from.empty()) {
        missing[chunk] = 1;
        continue;
      }
      const int source = *std::min_element(from.begin(), from.end(), [&](int a, int b) { return sends[a] < sends[b]; });
      ++sends[source];
      plan.moves.push_back({source, to, chunk});
    }
  }
  for (int c = 0; c < chunks; ++c)
    if (missing[c]) plan.uncovered.push_back(c);
  std::sort(plan.moves.begin(), plan.moves.end(), [](const Move& a, const Move& b) {
    return std::tie(a.from, a.to, a.chunk) < std::tie(b.from, b.to, b.chunk);
  });
  return plan;
}

}  // namespace bellows
