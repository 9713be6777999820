#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "bellows/comm/communicator.h"
#include "model_state.h"

namespace bellows {

/// What one rank of the transition world brings.
struct Holding {
  bool usable = false;               ///< has state of the agreed step
  ShardLayout layout;                ///< the layout that its state lies in; ranks can differ after a change that failed
  int old_rank = -1;                 ///< its rank under that layout
  bool parameters_current = false;   ///< its whole parameters are up to date
};

/// Moving from one layout to another, as a pure function of what everybody knows: the first `to.world_size()` ranks of
/// the transition world are the members of the new one, the others only hand over.
struct StateTransfer {
  std::vector<ReshardPlan> plans;    ///< one per ModelState::stores()
  std::uint64_t bytes_moved = 0;
  std::uint64_t bytes_minimum = 0;   ///< below which no evenly shared layout of the new world can go
  bool covered = true;               ///< every chunk of every store is held by somebody
  std::string missing;               ///< what is not, for people
};
StateTransfer plan_transfer(const ModelState& state, const std::vector<Holding>& holdings, const ShardLayout& to);

/// Collective over the transition world: carries out a covered plan. Afterwards `state` holds what the rank needs under
/// `to` (nothing, if it leaves), with current parameters. If a peer is lost on the way, CommError is thrown and the
/// state is as it was before.
void carry_out(ModelState& state, const StateTransfer& transfer, const std::vector<Holding>& holdings,
               const ShardLayout& to, Communicator& transition, ThreadPool& pool);

}  // namespace bellows
