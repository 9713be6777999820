#include "bellows/elastic/membership.h"

namespace bellows {
namespace {

/// `local_rank` counts the ranks of the same host that stand before.
std::optional<World> world_in(const std::vector<const MemberInfo*>& order, const std::string& id,
                              std::uint64_t generation) {
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    if (order[rank]->id != id) continue;
    World world;
    world.rank = static_cast<int>(rank);
    world.world_size = static_cast<int>(order.size());
    world.generation = generation;
    world.local_size = 0;
    for (std::size_t other = 0; other < order.size(); ++other) {
      if (order[other]->host != order[rank]->host) continue;
      if (other < rank) ++world.local_rank;
      ++world.local_size;
    }
    return world;
  }
  return std::nullopt;
}

}  // namespace

std::optional<World> Membership::world_of(const std::string& id) const {
  std::vector<const MemberInfo*> order;
  for (const MemberInfo& member : members) order.push_back(&member);
  return world_in(order, id, generation);
}

std::optional<World> Membership::transition_world_of(const std::string& id) const {
  std::vector<const MemberInfo*> order;
  for (const MemberInfo& member : members) order.push_back(&member);
  for (const MemberInfo& member : leaving) order.push_back(&member);
  return world_in(order, id, generation);
}

}  // namespace bellows
