#pragma once
#include <functional>
#include <string>
#include <vector>

#include "bellows/base/config.h"

namespace bellows {

/// A body that may throw: prints the error and returns 2 for what a person must mend, 1 for anything else.
int with_errors(const std::function<int()>& body);

/// Settings::parse for words of which the first is the command's name. False: help was printed.
[[nodiscard]] bool parse_words(Settings& settings, const std::vector<std::string>& argv);

}  // namespace bellows
