// What a person reads: --help, and the settings written out as TOML.
#include <algorithm>
#include <cctype>

#include "bellows/base/config.h"

namespace bellows {
namespace {

constexpr std::size_t kFlagColumn = 30;
constexpr std::size_t kLineWidth = 110;

// `text` from `column` on, wrapped; later lines are indented to the same column.
std::string wrapped(const std::string& text, std::size_t column) {
  std::string out;
  std::size_t width = column, begin = 0;
  while (begin < text.size()) {
    std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::size_t length = end - begin;
    if (width > column && width + 1 + length > kLineWidth) {
      out += "\n" + std::string(column, ' ');
      width = column;
    } else if (width > column) {
      out += ' ';
      ++width;
    }
    out += text.substr(begin, length);
    width += length;
    begin = end + 1;
  }
  return out + "\n";
}

std::string row(const std::string& left, const std::string& right) {
  const std::string lead = "  " + left;
  if (lead.size() + 2 > kFlagColumn) return lead + "\n" + std::string(kFlagColumn, ' ') + wrapped(right, kFlagColumn);
  return lead + std::string(kFlagColumn - lead.size(), ' ') + wrapped(right, kFlagColumn);
}

}  // namespace

std::string Settings::help() const {
  std::string usage = program_ + " [FLAGS]";
  for (const Setting& s : settings_)
    if (s.required_) usage += " --" + s.key_ + " " + s.value_name_ + (s.is_list() && !s.commas_ ? "..." : "");
  if (words_.target) usage += " " + words_.name;
  if (command_.target) usage += " -- " + command_.name;
  std::string out = program_ + ": " + wrapped(summary_, program_.size() + 2) + "\nUsage: " + usage + "\n";
  if (words_.target) out += row(words_.name, words_.help);
  if (command_.target) out += row(command_.name, command_.help);

  std::string title;
  for (const Setting& s : settings_) {
    if (s.group_ != title) out += "\n" + (title = s.group_) + "\n";
    std::string left = s.letter_ ? std::string("-") + s.letter_ + ", --" + s.key_ : "--" + s.key_;
    if (!s.is_bool()) left += " " + s.value_name_ + (s.is_list() && !s.commas_ ? "..." : "");
    std::string notes;
    const auto note = [&](const std::string& text) { notes += (notes.empty() ? "" : "; ") + text; };
    if (!s.choices_.empty() || s.low_) note(s.expected());
    if (s.required_) {
      note("required");
    } else if (s.default_text_ != "\"\"" && s.default_text_ != "[]" && s.default_text_ != "false") {
      const bool word = s.default_text_.starts_with('"');
      note("default " + (word ? s.default_text_.substr(1, s.default_text_.size() - 2) : s.default_text_));
    }
    out += row(left, s.help_ + (notes.empty() ? "" : " (" + notes + ")"));
  }
  out += "\nConfiguration\n" +
         row("--config FILE", "TOML file with any of these keys: `" + settings_.front().key_ + " = ...`") +
         row("--set KEY=VALUE", "sets one key; may be given several times") + row("-h, --help", "this text");
  std::string variable;
  for (const char c : settings_.front().key_)
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  out += "\n" + wrapped("Every flag is also an environment variable (--" + settings_.front().key_ + " is BELLOWS_" +
                            variable + "). What wins: flag, --set, environment, file, default.",
                        0);
  if (!examples_.empty()) out += "\nExamples\n";
  for (const Example& e : examples_) out += "  " + e.command + "\n      " + wrapped(e.meaning, 6);
  return out;
}

std::string Settings::to_toml() const {
  std::string out;
  for (const Setting& s : settings_)
    out += s.key_ + " = " + s.current() + "  # " + (s.source_.empty() ? "default" : s.source_) + "\n";
  return out;
}

}  // namespace bellows
