// One setting: turning words into a checked value, and saying what was expected where they are none.
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <type_traits>

#include "bellows/base/config.h"
#include "bellows/base/error.h"

namespace bellows {
namespace {

template <class T>
constexpr bool kIsNumber = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

template <class T>
std::optional<T> number(std::string_view word) {
  if (word.starts_with('+')) word.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || word.empty()) return std::nullopt;
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) return std::nullopt;
  }
  return value;
}

std::optional<bool> boolean(std::string_view word) {
  for (const char* yes : {"true", "1", "yes", "on"})
    if (word == yes) return true;
  for (const char* no : {"false", "0", "no", "off"})
    if (word == no) return false;
  return std::nullopt;
}

template <class T>
std::string text(T value) {
  char buffer[64];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

std::string join(const std::vector<std::string>& words, const char* between) {
  std::string all;
  for (const auto& word : words) all += (all.empty() ? "" : between) + word;
  return all;
}

std::string quoted(const std::string& word) {
  std::string out = "\"";
  for (const char c : word) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04X", static_cast<unsigned>(c));
      out += code;
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace

Setting& Setting::short_name(char letter) { return letter_ = letter, *this; }
Setting& Setting::range(double low, double high) { return low_ = low, high_ = high, *this; }
Setting& Setting::at_least(double low) { return low_ = low, *this; }
Setting& Setting::above(double low) { return low_ = low, low_allowed_ = false, *this; }
Setting& Setting::choices(std::vector<std::string> words) { return choices_ = std::move(words), *this; }
Setting& Setting::value_name(std::string name) { return value_name_ = std::move(name), *this; }
Setting& Setting::commas() { return commas_ = true, *this; }
Setting& Setting::required() { return required_ = true, *this; }

std::string Setting::expected() const {
  if (!choices_.empty()) return "one of " + join(choices_, ", ");
  const std::string kind = std::visit(
      [](auto* target) -> std::string {
        using T = std::remove_pointer_t<decltype(target)>;
        if (std::is_same_v<T, bool>) return "true or false";
        if (std::is_floating_point_v<T>) return "a number";
        if (kIsNumber<T>) return "a whole number";
        return "text";
      },
      target_);
  if (low_ && high_) return kind + " from " + text(*low_) + " to " + text(*high_);
  if (low_) return kind + (low_allowed_ ? " of at least " : " above ") + text(*low_);
  return kind;
}

// As a TOML value.
std::string Setting::current() const {
  return std::visit(
      [](auto* target) -> std::string {
        using T = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_same_v<T, bool>) {
          return *target ? "true" : "false";
        } else if constexpr (std::is_same_v<T, std::string>) {
          return quoted(*target);
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          std::vector<std::string> words;
          for (const auto& word : *target) words.push_back(quoted(word));
          return "[" + join(words, ", ") + "]";
        } else {
          std::string digits = text(*target);
          // TOML tells 1.0 from 1, and this key must read back as the kind it is.
          if (std::is_floating_point_v<T> && digits.find_first_of(".e") == std::string::npos) digits += ".0";
          return digits;
        }
      },
      target_);
}

void Setting::assign(const std::vector<std::string>& words, const std::string& where, std::string source) {
  const auto refuse = [&] { throw UserError(where + ": expected " + expected()); };
  const auto check_choice = [&](const std::string& word) {
    if (choices_.empty()) return;
    for (const auto& choice : choices_)
      if (choice == word) return;
    refuse();
  };
  std::visit(
      [&](auto* target) {
        using T = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          for (const auto& word : words) check_choice(word);
          *target = words;
        } else if constexpr (std::is_same_v<T, std::string>) {
          check_choice(words.at(0));
          *target = words.at(0);
        } else if constexpr (std::is_same_v<T, bool>) {
          const auto value = boolean(words.at(0));
          if (!value) refuse();
          *target = *value;
        } else {
          const auto value = number<T>(words.at(0));
          if (!value) refuse();
          const double v = static_cast<double>(*value);
          if ((low_ && (low_allowed_ ? v < *low_ : v <= *low_)) || (high_ && v > *high_)) refuse();
          *target = *value;
        }
      },
      target_);
  source_ = std::move(source);
}

}  // namespace bellows
