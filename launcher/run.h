#pragma once
#include <string>
#include <vector>

namespace bellows {

// The commands that run something. `argv` begins with the command's own name.

/// Coordinator, agent and ranks on this host, and the progress display. Returns the job's exit code.
int run_command(const std::vector<std::string>& argv);
/// A coordinator alone: agents and ranks come to it.
int coordinator_command(const std::vector<std::string>& argv);
/// An agent alone: runs ranks of `program` on this host for a coordinator elsewhere.
int agent_command(const std::vector<std::string>& argv);

}  // namespace bellows
