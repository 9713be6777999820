#pragma once
#include <string>
#include <string_view>

namespace bellows {

/// The shortest text that reads back as the same float.
std::string exact(float value);

/// Throws UserError naming optimizer, setting, value and allowed range unless `low` <= value < `high`.
void check_range(std::string_view optimizer, std::string_view setting, float value, double low, double high);

/// Throws UserError unless value is finite and above 0.
void check_positive(std::string_view optimizer, std::string_view setting, float value);

}  // namespace bellows
