#pragma once
#include <string>
#include <vector>

#include "bellows/base/config.h"
#include "bellows/comm/topology.h"

namespace bellows {

/// The settings that say which processors the ranks of a host get, shared by `bellows run` and `bellows agent`.
struct BindFlags {
  std::string bind_to = "auto";
  bool strict = false;
  std::string topology_file;

  void add_to(Settings& settings);

  /// The host called `name`, or the only one, of the recorded topology; without a file this one. Throws UserError.
  HostTopology host(const std::string& name) const;
  /// By slot. `fixed_world`: no rank comes or goes but by failing. Throws UserError if `strict` and it cannot be so.
  BindPlan plan(const HostTopology& host, int slots, const CpuSet& allowed, bool fixed_world) const;
};

/// What `bellows run --show-topology` prints: the hosts, and where `ranks` ranks would run and on which processors.
/// `slots` is for each host; 0: as many as the ranks need. Throws UserError if they do not fit.
std::string show_topology(const BindFlags& flags, int ranks, int slots, bool fixed_world);

}  // namespace bellows
