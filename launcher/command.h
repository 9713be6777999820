#pragma once
#include <string>
#include <vector>

#include "bellows/base/config.h"

namespace bellows {

/// Settings::parse for words of which the first is the command's name. False: help was printed.
[[nodiscard]] bool parse_words(Settings& settings, const std::vector<std::string>& argv);

}  // namespace bellows
