#pragma once
#include <string>

namespace bellows {

/// Hex digits that nobody can guess.
std::string random_hex(int digits);

}  // namespace bellows
