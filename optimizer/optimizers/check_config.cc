#include "optimizers/check_config.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "bellows/base/error.h"

namespace bellows {
namespace {

[[noreturn]] void refuse(std::string_view optimizer, std::string_view setting, float value, const std::string& range) {
  throw UserError(std::string(optimizer) + ": " + std::string(setting) + " = " + exact(value) + " must be " + range);
}

std::string text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%g", value);
  return buffer;
}

}  // namespace

std::string exact(float value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return {buffer, end};
}

void check_range(std::string_view optimizer, std::string_view setting, float value, double low, double high) {
  const double v = value;
  if (!(v >= low && v < high)) refuse(optimizer, setting, value, "at least " + text(low) + " and below " + text(high));
}

void check_positive(std::string_view optimizer, std::string_view setting, float value) {
  if (!(value > 0 && std::isfinite(value))) refuse(optimizer, setting, value, "a number above 0");
}

}  // namespace bellows
