#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace bellows {

/// Letters to insert, drop, change, or swap with their neighbour to turn one word into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The known word with the smallest edit distance, the first of several; empty if none is known.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace bellows
