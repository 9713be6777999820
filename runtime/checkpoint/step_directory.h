#pragma once
#include <string>
#include <vector>

namespace bellows {

/// "step-00000042"
std::string step_directory_name(long long step);
/// What a save that is under way, or was killed, is called.
bool is_partial_name(const std::string& name);
/// Paths of the published checkpoints in `directory`, newest step first. Empty if there are none or no such directory.
std::vector<std::string> step_directories(const std::string& directory);

}  // namespace bellows
