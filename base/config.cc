#include "bellows/base/config.h"

#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "bellows/base/check.h"
#include "bellows/base/error.h"
#include "bellows/base/nearest.h"

namespace bellows {
namespace {

// "MFU_Threshold" and "mfu-threshold" are one key.
std::string canonical(std::string_view name) {
  std::string key;
  for (const char c : name) key += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return key;
}

std::string variable_of(std::string_view key) {
  std::string name = "BELLOWS_";
  for (const char c : key) name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::vector<std::string> split_commas(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    if (end > 0) words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

std::string join_commas(const std::vector<std::string>& words) {
  std::string all;
  for (const auto& word : words) all += (all.empty() ? "" : ",") + word;
  return all;
}

bool matches(std::string_view name, std::string_view pattern) {
  if (!pattern.ends_with('*')) return name == pattern;
  return name.starts_with(pattern.substr(0, pattern.size() - 1));
}

// A leaf of a TOML file: its path joined by '-', its value as words, and where it stands.
struct Leaf {
  std::string key, where, shown;
  std::vector<std::string> words;
  bool is_array, is_text;
};

std::string words_of(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  std::ostringstream out;
  if (const auto* whole = node.as_integer()) {
    out << whole->get();
  } else {
    out << toml::node_view<const toml::node>(node);
  }
  return out.str();
}

std::string shown(const toml::node& node) {
  std::ostringstream out;
  out << toml::node_view<const toml::node>(node);
  return out.str();
}

void collect(const toml::table& table, const std::string& prefix, const std::string& file, std::vector<Leaf>* leaves) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix + canonical(name.str());
    const std::string where = file + ":" + std::to_string(node.source().begin.line);
    if (const auto* inner = node.as_table()) {
      collect(*inner, key + "-", file, leaves);
      continue;
    }
    Leaf leaf{key, where, std::string(name.str()) + " = " + shown(node), {}, node.is_array(), node.is_string()};
    if (const auto* array = node.as_array()) {
      for (const auto& element : *array) {
        if (!element.is_value()) throw UserError(where + ": " + leaf.shown + ": expected a list of plain values");
        leaf.words.push_back(words_of(element));
      }
    } else {
      leaf.words = {words_of(node)};
    }
    leaves->push_back(std::move(leaf));
  }
}

}  // namespace

const std::vector<std::string>& runtime_environment() {
  static const std::vector<std::string> names = {
      "BELLOWS_RANK",      "BELLOWS_WORLD_SIZE", "BELLOWS_LOCAL_RANK", "BELLOWS_LOCAL_SIZE", "BELLOWS_COORDINATOR",
      "BELLOWS_TOKEN",     "BELLOWS_MEMBER",     "BELLOWS_HOST",       "BELLOWS_JOB",        "BELLOWS_FAULT",
      "BELLOWS_HEARTBEAT", "BELLOWS_WINDOW",     "BELLOWS_PEAK_F32",   "BELLOWS_PEAK_BF16",  "BELLOWS_LOG_LEVEL",
      "BELLOWS_CONFIG",    "BELLOWS_SPAWN_*",    "BELLOWS_TEST_*"};
  return names;
}

Settings::Settings(std::string program, std::string summary)
    : program_(std::move(program)), summary_(std::move(summary)) {}

Settings& Settings::group(std::string title) { return group_title_ = std::move(title), *this; }

Setting& Settings::add(std::string key, Setting::Target target, std::string help) {
  BELLOWS_CHECK_EQ(key, canonical(key));
  BELLOWS_CHECK(find(key) == nullptr && key != "config" && key != "set" && key != "help");
  Setting& s = settings_.emplace_back(Setting(target));
  s.key_ = std::move(key);
  s.help_ = std::move(help);
  s.group_ = group_title_;
  s.default_text_ = s.current();
  const bool text = std::holds_alternative<std::string*>(target) || s.is_list();
  s.value_name_ = text                                                                                ? "TEXT"
                  : std::holds_alternative<float*>(target) || std::holds_alternative<double*>(target) ? "X"
                                                                                                      : "N";
  return s;
}

Settings& Settings::words(std::string name, std::vector<std::string>* target, std::string help) {
  return words_ = {std::move(name), std::move(help), target}, *this;
}
Settings& Settings::command(std::string name, std::vector<std::string>* target, std::string help) {
  return command_ = {std::move(name), std::move(help), target}, *this;
}
Settings& Settings::example(std::string command, std::string meaning) {
  return examples_.push_back({std::move(command), std::move(meaning)}), *this;
}
Settings& Settings::accept_environment(const std::vector<std::string>& names) {
  return accepted_.insert(accepted_.end(), names.begin(), names.end()), *this;
}
Settings& Settings::leave_unknown() { return leave_unknown_ = true, *this; }

const Setting* Settings::find(std::string_view key) const {
  const auto found = std::find_if(settings_.begin(), settings_.end(), [&](const Setting& s) { return s.key_ == key; });
  return found == settings_.end() ? nullptr : &*found;
}
Setting* Settings::find(std::string_view key) { return const_cast<Setting*>(std::as_const(*this).find(key)); }

std::vector<std::string> Settings::keys() const {
  std::vector<std::string> all;
  for (const Setting& s : settings_) all.push_back(s.key_);
  return all;
}

bool Settings::is_set(std::string_view key) const {
  const Setting* s = find(key);
  BELLOWS_CHECK(s != nullptr);
  return !s->source_.empty();
}
std::string Settings::source_of(std::string_view key) const { return is_set(key) ? find(key)->source_ : "default"; }

bool Settings::parse(int argc, const char* const* argv, const char* const* environment) {
  read_command_line(argc, argv);
  if (help_asked_) {
    std::fputs(help().c_str(), stdout);
    return false;
  }
  apply(environment);
  return true;
}

void Settings::parse_environment(const char* const* environment) { apply(environment); }

// Lowest precedence first: each source overwrites what the one before it set.
void Settings::apply(const char* const* environment) {
  if (!environment) environment = environ;
  if (config_file_.empty()) {
    for (const char* const* entry = environment; *entry; ++entry)
      if (std::string_view(*entry).starts_with("BELLOWS_CONFIG="))
        config_file_ = *entry + std::strlen("BELLOWS_CONFIG=");
  }
  if (!config_file_.empty()) read_file(config_file_);
  read_environment(environment);
  read_sets();
  for (const auto& assign : flags_) assign();
  for (const Setting& s : settings_)
    if (s.required_ && s.source_.empty())
      throw UserError(program_ + " needs --" + s.key_ + " " + s.value_name_ + ": " + s.help_);
}

void Settings::read_command_line(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") {
      auto* rest = command_.target ? command_.target : words_.target;
      if (!rest && i + 1 < argc) throw UserError(program_ + ": unexpected '" + argv[i + 1] + "' after --");
      for (++i; i < argc; ++i) rest->emplace_back(argv[i]);
    } else if (word == "--help" || word == "-h") {
      help_asked_ = true;
    } else if (word.starts_with("--")) {
      read_flag(argc, argv, &i);
    } else if (word.size() > 1 && word[0] == '-' && std::isalpha(static_cast<unsigned char>(word[1]))) {
      read_letter(argc, argv, &i);
    } else if (words_.target) {
      words_.target->emplace_back(word);
    } else {
      throw UserError(program_ + ": unexpected '" + std::string(word) + "'; see " + program_ + " --help");
    }
  }
}

void Settings::read_flag(int argc, const char* const* argv, int* i) {
  const std::string_view word = argv[*i];
  const std::size_t equals = word.find('=');
  const std::string name(word.substr(2, equals == word.npos ? word.npos : equals - 2));
  std::string key = canonical(name);
  std::optional<std::string> value;
  if (equals != word.npos) value = std::string(word.substr(equals + 1));

  const auto next = [&]() -> std::string {
    if (value) return *value;
    if (*i + 1 >= argc || std::string_view(argv[*i + 1]).starts_with("--"))
      throw UserError("--" + name + " needs a value; see " + program_ + " --help");
    return argv[++*i];
  };
  if (key == "config") return void(config_file_ = next());
  if (key == "set") return void(sets_.push_back(next()));

  Setting* s = find(key);
  if (!s && key.starts_with("no-") && !value) {
    s = find(key.substr(3));
    if (s && s->is_bool())
      value = "false";
    else
      s = nullptr;
  }
  if (!s) {
    std::vector<std::string> known = keys();
    known.insert(known.end(), {"config", "set", "help"});
    throw UserError("unknown flag --" + name + "; the nearest known one is --" + nearest(key, known) + " (see " +
                    program_ + " --help)");
  }
  std::vector<std::string> words;
  if (s->is_bool()) {
    words = {value.value_or("true")};
  } else if (s->is_list()) {
    words = {next()};
    while (!value && *i + 1 < argc && argv[*i + 1][0] != '-') words.emplace_back(argv[++*i]);
    if (s->commas_) words = split_commas(join_commas(words));
  } else {
    words = {next()};
  }
  // A list given twice grows; the first of its flags replaces what lower sources said.
  const std::string where = "--" + name + " " + join_commas(words);
  flags_.push_back([s, words, where, flag = "--" + s->key_] {
    std::vector<std::string> all = words;
    if (auto* list = std::get_if<std::vector<std::string>*>(&s->target_); list && s->source_ == flag)
      all.insert(all.begin(), (**list).begin(), (**list).end());
    s->assign(all, where, flag);
  });
}

// -n 4 or -n4: rewritten as the long flag.
void Settings::read_letter(int argc, const char* const* argv, int* i) {
  const std::string word = argv[*i];
  const auto found =
      std::find_if(settings_.begin(), settings_.end(), [&](const Setting& s) { return s.letter_ == word[1]; });
  if (found == settings_.end()) throw UserError("unknown flag " + word + "; see " + program_ + " --help");
  std::vector<std::string> rewritten = {"--" + found->key_};
  if (word.size() > 2) rewritten[0] += "=" + word.substr(word[2] == '=' ? 3 : 2);
  if (word.size() == 2 && !found->is_bool() && *i + 1 < argc) rewritten.emplace_back(argv[++*i]);
  std::vector<const char*> pointers;
  for (const auto& part : rewritten) pointers.push_back(part.c_str());
  int first = 0;
  read_flag(static_cast<int>(pointers.size()), pointers.data(), &first);
}

void Settings::read_file(const std::string& path) {
  toml::table table;
  if (access(path.c_str(), R_OK) != 0)
    throw UserError("cannot read the configuration file '" + path + "': " + std::strerror(errno));
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    throw UserError(path + ":" + std::to_string(error.source().begin.line) +
                    ": not TOML: " + std::string(error.description()));
  }
  std::vector<Leaf> leaves;
  collect(table, "", path, &leaves);
  for (const Leaf& leaf : leaves) {
    for (const Leaf& other : leaves)
      if (&other < &leaf && other.key == leaf.key)
        throw UserError(leaf.where + ": '" + leaf.key + "' is set twice, here and at " + other.where);
    Setting* s = find(leaf.key);
    const std::string where = leaf.where + ": " + leaf.shown;
    if (!s) {
      unknown(LeftOver::From::kFile, leaf.where, leaf.key, join_commas(leaf.words));
      continue;
    }
    const bool wants_text = std::holds_alternative<std::string*>(s->target_);
    if ((leaf.is_array && !s->is_list()) || (!s->is_list() && wants_text != leaf.is_text))
      throw UserError(where + ": expected " + s->expected());
    s->assign(leaf.words, where, leaf.where);
  }
}

void Settings::read_environment(const char* const* environment) {
  for (; *environment; ++environment) {
    const std::string_view entry = *environment;
    const std::size_t equals = entry.find('=');
    if (!entry.starts_with("BELLOWS_") || equals == entry.npos) continue;
    const std::string name(entry.substr(0, equals)), value(entry.substr(equals + 1));
    const std::string key = canonical(name.substr(std::strlen("BELLOWS_")));
    if (Setting* s = find(key)) {
      s->assign(s->is_list() ? split_commas(value) : std::vector<std::string>{value}, name + "=" + value, name);
      continue;
    }
    const auto accepts = [&](const std::vector<std::string>& patterns) {
      return std::any_of(patterns.begin(), patterns.end(), [&](const auto& p) { return matches(name, p); });
    };
    if (!accepts(runtime_environment()) && !accepts(accepted_)) unknown(LeftOver::From::kEnvironment, name, key, value);
  }
}

void Settings::read_sets() {
  for (const std::string& pair : sets_) {
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0) throw UserError("--set " + pair + ": expected KEY=VALUE");
    std::string key = canonical(pair.substr(0, equals));
    std::replace(key.begin(), key.end(), '.', '-');
    const std::string value = pair.substr(equals + 1);
    if (Setting* s = find(key)) {
      s->assign(s->is_list() ? split_commas(value) : std::vector<std::string>{value}, "--set " + pair, "--set");
    } else {
      unknown(LeftOver::From::kSet, "--set", key, value);
    }
  }
}

void Settings::unknown(LeftOver::From from, const std::string& where, const std::string& key,
                       const std::string& value) {
  const std::string close = nearest(key, keys());
  if (leave_unknown_) {
    left_over_.push_back({from, where, key, value, close});
    return;
  }
  switch (from) {
    case LeftOver::From::kEnvironment: {
      std::vector<std::string> known;
      for (const Setting& s : settings_) known.push_back(variable_of(s.key_));
      known.insert(known.end(), accepted_.begin(), accepted_.end());
      known.insert(known.end(), runtime_environment().begin(), runtime_environment().end());
      throw UserError("unknown variable " + where + "; the nearest known one is " + bellows::nearest(where, known));
    }
    case LeftOver::From::kFile:
      throw UserError(where + ": unknown key '" + key + "'; the nearest known one is '" + close + "'");
    case LeftOver::From::kSet:
      throw UserError("--set " + key + "=" + value + ": unknown key '" + key + "'; the nearest known one is '" + close +
                      "'");
  }
}

}  // namespace bellows
