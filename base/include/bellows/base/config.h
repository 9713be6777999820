#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace bellows {

/// One setting of a program: a key, where its value goes, and what may be in it. Made by Settings::add.
class Setting {
 public:
  using Target = std::variant<bool*, int*, std::int64_t*, std::uint64_t*, float*, double*, std::string*,
                              std::vector<std::string>*>;

  Setting& short_name(char letter);         ///< also `-n N`
  Setting& range(double low, double high);  ///< both ends allowed
  Setting& at_least(double low);
  Setting& above(double low);                        ///< `low` itself not allowed
  Setting& choices(std::vector<std::string> words);  ///< a string that is one of these words
  Setting& value_name(std::string name);             ///< stands for the value in --help: "FILE", "SEC"
  Setting& commas();                                 ///< a list whose flag too is cut at commas: --ops a,b
  Setting& required();                               ///< not given by any source: an error

 private:
  friend class Settings;
  std::string key_, help_, group_, value_name_, default_text_;
  Target target_;
  char letter_ = 0;
  std::optional<double> low_, high_;
  bool low_allowed_ = true, commas_ = false, required_ = false;
  std::vector<std::string> choices_;
  std::string source_;  // empty: still the default

  explicit Setting(Target target) : target_(target) {}
  bool is_bool() const { return std::holds_alternative<bool*>(target_); }
  bool is_list() const { return std::holds_alternative<std::vector<std::string>*>(target_); }
  std::string expected() const;
  std::string current() const;
  void assign(const std::vector<std::string>& words, const std::string& where, std::string source);
};

/// A key that is not this program's, with the value it was given; see Settings::leave_unknown.
struct LeftOver {
  enum class From { kFile, kEnvironment, kSet };
  From from;
  std::string where;    ///< "job.toml:3", "BELLOWS_LANES", "--set"
  std::string key;      ///< "lanes"
  std::string value;    ///< as an environment variable would hold it; lists joined by commas
  std::string nearest;  ///< the nearest key that this program knows
};

/// The settings of a program, declared once:
///
///     Settings settings("bellows run", "starts a job on this host");
///     settings.group("World");
///     settings.add("min", &options.min, "smallest world size").range(1, 4096);
///     if (!settings.parse(argc, argv)) return 0;   // --help was asked for and printed
///
/// A key "mfu-threshold" is the flag --mfu-threshold, the variable BELLOWS_MFU_THRESHOLD and the TOML key
/// `mfu-threshold` (or `mfu_threshold`, or `threshold` in a table `[mfu]`). What wins, first to last: the flag,
/// `--set KEY=VALUE`, the environment, the file given by `--config FILE` (or BELLOWS_CONFIG), the default.
/// Whatever is wrong is a UserError that names the source, the value and what is allowed; an unknown key names the
/// nearest known one. Values given by a source that another one overrides are checked all the same.
class Settings {
 public:
  Settings(std::string program, std::string summary);
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;

  /// Settings added from here on stand under this title in --help.
  Settings& group(std::string title);
  /// `target` must outlive parse(); what it holds now is the default.
  Setting& add(std::string key, Setting::Target target, std::string help);
  /// Takes words that belong to no flag, for instance "FILE..." or "ACTION [VALUE]"; otherwise they are errors.
  Settings& words(std::string name, std::vector<std::string>* target, std::string help);
  /// Takes everything after `--`, for instance "PROG ARGS..."; otherwise `--` only ends the flags.
  Settings& command(std::string name, std::vector<std::string>* target, std::string help);
  Settings& example(std::string command, std::string meaning);

  /// BELLOWS_ variables that are not settings of this program and are no mistake; a trailing `*` stands for anything.
  /// runtime_environment() is always among them.
  Settings& accept_environment(const std::vector<std::string>& names);
  /// A launcher does not know the keys of the program it starts: keys unknown to it (from file, environment and --set,
  /// not flags) are kept in left_over() instead of being errors.
  Settings& leave_unknown();

  /// Reads all sources. False: --help was asked for and has been printed to standard output.
  /// `environment` is a null-terminated list of NAME=VALUE; null means this process' own.
  [[nodiscard]] bool parse(int argc, const char* const* argv, const char* const* environment = nullptr);
  /// For trainers that have a command line of their own: environment and file only.
  void parse_environment(const char* const* environment = nullptr);

  bool is_set(std::string_view key) const;            ///< by any source, even to the default's value
  std::string source_of(std::string_view key) const;  ///< "--min", "--set", "BELLOWS_MIN", "job.toml:3", "default"
  const std::vector<LeftOver>& left_over() const { return left_over_; }
  std::string help() const;
  /// All settings with their values as a TOML file that gives the same values back.
  std::string to_toml() const;

 private:
  struct Example {
    std::string command, meaning;
  };
  struct Words {
    std::string name, help;
    std::vector<std::string>* target = nullptr;
  };

  Setting* find(std::string_view key);
  const Setting* find(std::string_view key) const;
  std::vector<std::string> keys() const;
  void read_command_line(int argc, const char* const* argv);
  void read_flag(int argc, const char* const* argv, int* i);
  void read_letter(int argc, const char* const* argv, int* i);
  void read_file(const std::string& path);
  void read_environment(const char* const* environment);
  void read_sets();
  void apply(const char* const* environment);
  void unknown(LeftOver::From from, const std::string& where, const std::string& key, const std::string& value);

  std::string program_, summary_, group_title_ = "Flags";
  std::deque<Setting> settings_;  // a deque: Setting& of add() stays valid
  Words words_, command_;
  std::vector<Example> examples_;
  std::vector<std::string> accepted_;
  bool leave_unknown_ = false, help_asked_ = false;
  std::string config_file_;
  std::vector<std::string> sets_;
  std::vector<std::function<void()>> flags_;  // assignments from the command line, carried out last
  std::vector<LeftOver> left_over_;
};

/// The variables of Bellows' own protocol between launcher, ranks and runtime: not settings of any program.
const std::vector<std::string>& runtime_environment();

}  // namespace bellows
