#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/base/clock.h"
#include "bellows/runtime/mfu.h"

namespace bellows {

/// Settings of a policy; see docs/protocol.md and idea 8 of the design.
struct PolicyConfig {
  std::string name = "manual";         ///< manual | mfu-threshold | mfu-guard
  double threshold = 0.30;             ///< theta
  int windows = 3;                     ///< consecutive valid windows before acting
  double fraction = 0.2;               ///< mfu-threshold: share of the ranks released or asked for at once
  bool literal = false;                ///< mfu-threshold: every window decides, no minimum of one rank
  double data_wait_gate = 0.30;        ///< of compute; above it the world is not changed
  double straggler_gate = 0.10;
  int min_ranks = 1;
  int max_ranks = 1;
  std::vector<int> ladder;             ///< mfu-guard: admissible sizes, ascending; empty: min, powers of two, max
};
std::vector<int> guard_ladder(const PolicyConfig& config);

/// What decide() looks at. A value; the coordinator appends windows in order of arrival.
struct PolicyState {
  int world_size = 0;
  std::vector<MfuWindow> windows;      ///< since the last change of the world, oldest first
};

/// What to do and why. `target` is the wished world size; nothing: keep.
struct Decision {
  std::optional<int> target;
  std::string reason;                  ///< one sentence with the inputs, also when nothing is done
  std::string finding;                 ///< set if a cause gate held a change back: what to mend instead
  bool counted = false;                ///< the newest window was valid and counted
};

/// Pure: the coordinator, tests with a hand-set clock and the simulator call this same function.
Decision decide(const PolicyState& state, Nanos now, const PolicyConfig& policy);

}  // namespace bellows
