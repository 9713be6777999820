#pragma once
#include <string>
#include <vector>

namespace bellows {

/// bellows ctl status | scale N | drain HOST | events | stop: an operator's hand on a running job.
int ctl_command(const std::vector<std::string>& argv);

}  // namespace bellows
