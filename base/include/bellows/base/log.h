#pragma once
#include <spdlog/spdlog.h>

#include <string>

namespace bellows {

/// Sets up the process' log: to standard error, each line led by `who` ("rank 2", "coordinator").
/// Levels: trace, debug, info, warn, error. Called once at a process' entry.
void init_log(const std::string& who, const std::string& level = "info");

namespace log = ::spdlog;

}  // namespace bellows
