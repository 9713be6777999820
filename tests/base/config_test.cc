#include "bellows/base/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "bellows/base/error.h"
#include "bellows/base/nearest.h"

namespace bellows {
namespace {

// A program with a setting of every kind.
struct Program {
  int min = 1;
  std::int64_t steps = 100;
  std::uint64_t seed = 1;
  double threshold = 0.3;
  float lr = 1e-3f;
  bool json = false;
  std::string precision = "fp32";
  std::vector<std::string> data, ops, words, command;
  Settings settings{"prog", "does things"};

  Program() {
    settings.group("World");
    settings.add("min", &min, "smallest world size").range(1, 64).short_name('n');
    settings.add("mfu-threshold", &threshold, "release below this MFU").range(0, 1);
    settings.group("Training");
    settings.add("steps", &steps, "steps to train").at_least(0);
    settings.add("seed", &seed, "of all random numbers");
    settings.add("lr", &lr, "peak learning rate").above(0);
    settings.add("json", &json, "machine-readable output");
    settings.add("precision", &precision, "of compute").choices({"fp32", "bf16"});
    settings.add("data", &data, "text files").value_name("FILE");
    settings.add("ops", &ops, "operations").commas();
  }

  bool parse(std::vector<std::string> args, std::vector<std::string> environment = {}) {
    args.insert(args.begin(), "prog");
    std::vector<const char*> argv, env;
    for (const auto& a : args) argv.push_back(a.c_str());
    for (const auto& e : environment) env.push_back(e.c_str());
    env.push_back(nullptr);
    return settings.parse(static_cast<int>(argv.size()), argv.data(), env.data());
  }
  std::string error(const std::vector<std::string>& args, const std::vector<std::string>& environment = {}) {
    try {
      parse(args, environment);
    } catch (const UserError& e) {
      return e.what();
    }
    return "no error";
  }
};

// Every try starts from the defaults.
std::string error_of(const std::vector<std::string>& args, const std::vector<std::string>& environment = {}) {
  return Program().error(args, environment);
}

class TomlFile {
 public:
  explicit TomlFile(const std::string& content)
      : path_(testing::TempDir() + "config_test_" + std::to_string(getpid()) + "_" + std::to_string(count_++) +
              ".toml") {
    std::ofstream(path_) << content;
  }
  ~TomlFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  static inline int count_ = 0;
  std::string path_;
};

TEST(Settings, KeepsDefaultsWhereNothingIsGiven) {
  Program p;
  ASSERT_TRUE(p.parse({}));
  EXPECT_EQ(p.min, 1);
  EXPECT_EQ(p.threshold, 0.3);
  EXPECT_FALSE(p.settings.is_set("min"));
  EXPECT_EQ(p.settings.source_of("min"), "default");
}

TEST(Settings, ReadsEveryKindOfValueFromFlags) {
  Program p;
  ASSERT_TRUE(
      p.parse({"--min", "4", "--mfu-threshold=0.5", "--steps", "9000000000", "--seed", "18446744073709551615", "--lr",
               "3e-4", "--json", "--precision", "bf16", "--data", "a", "b", "--ops", "x,y", "--data", "c"}));
  EXPECT_EQ(p.min, 4);
  EXPECT_EQ(p.threshold, 0.5);
  EXPECT_EQ(p.steps, 9000000000);
  EXPECT_EQ(p.seed, 18446744073709551615u);
  EXPECT_EQ(p.lr, 3e-4f);
  EXPECT_TRUE(p.json);
  EXPECT_EQ(p.precision, "bf16");
  EXPECT_EQ(p.data, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(p.ops, (std::vector<std::string>{"x", "y"}));
}

TEST(Settings, ShortNamesAndUnderscoresAndNegationsAreTheSameFlags) {
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"-n", "4"}, {"-n4"}, {"-n=4"}, {"--min=4"}, {"--mfu_threshold", "0.3", "-n4"}}) {
    Program p;
    ASSERT_TRUE(p.parse(args));
    EXPECT_EQ(p.min, 4);
  }
  Program p;
  ASSERT_TRUE(p.parse({"--no-json"}, {"BELLOWS_JSON=true"}));
  EXPECT_FALSE(p.json);
}

TEST(Settings, FlagBeatsSetBeatsEnvironmentBeatsFileBeatsDefault) {
  const TomlFile file("min = 2\n");
  struct Case {
    std::vector<std::string> args, environment;
    int min;
    std::string source;
  };
  const std::string config = "--config=" + file.path();
  for (const Case& c : {Case{{}, {}, 1, "default"}, Case{{config}, {}, 2, file.path() + ":1"},
                        Case{{config}, {"BELLOWS_MIN=3"}, 3, "BELLOWS_MIN"},
                        Case{{config, "--set", "min=4"}, {"BELLOWS_MIN=3"}, 4, "--set"},
                        Case{{"--min=5", config, "--set", "min=4"}, {"BELLOWS_MIN=3"}, 5, "--min"},
                        Case{{}, {"BELLOWS_CONFIG=" + file.path()}, 2, file.path() + ":1"}}) {
    Program p;
    ASSERT_TRUE(p.parse(c.args, c.environment));
    EXPECT_EQ(p.min, c.min);
    EXPECT_EQ(p.settings.source_of("min"), c.source);
  }
}

TEST(Settings, AListFromAStrongerSourceReplacesAWeakerOne) {
  const TomlFile file("data = [\"x\", \"y\"]\n");
  Program p;
  ASSERT_TRUE(p.parse({"--config", file.path(), "--data", "z"}, {"BELLOWS_DATA=e1,e2"}));
  EXPECT_EQ(p.data, std::vector<std::string>{"z"});
  Program q;
  ASSERT_TRUE(q.parse({"--config", file.path()}, {"BELLOWS_DATA=e1,e2"}));
  EXPECT_EQ(q.data, (std::vector<std::string>{"e1", "e2"}));
}

TEST(Settings, ReadsTomlOfEveryKindAndTablesAsPrefixes) {
  const TomlFile file(
      "min = 3\nsteps = 7\nlr = 1\njson = true\nprecision = \"bf16\"\ndata = [\"a\", \"b,c\"]\n[mfu]\nthreshold = "
      "0.25\n");
  Program p;
  ASSERT_TRUE(p.parse({"--config", file.path()}));
  EXPECT_EQ(p.min, 3);
  EXPECT_EQ(p.steps, 7);
  EXPECT_EQ(p.lr, 1.0f);
  EXPECT_TRUE(p.json);
  EXPECT_EQ(p.precision, "bf16");
  EXPECT_EQ(p.data, (std::vector<std::string>{"a", "b,c"}));
  EXPECT_EQ(p.threshold, 0.25);
}

TEST(Settings, AnUnknownKeyNamesTheNearestKnownOneWhateverItsSource) {
  EXPECT_EQ(error_of({"--mni", "2"}), "unknown flag --mni; the nearest known one is --min (see prog --help)");
  EXPECT_EQ(error_of({"--mfu-treshold=1"}),
            "unknown flag --mfu-treshold; the nearest known one is --mfu-threshold (see prog --help)");
  EXPECT_EQ(error_of({}, {"BELLOWS_STEP=2"}), "unknown variable BELLOWS_STEP; the nearest known one is BELLOWS_STEPS");
  EXPECT_EQ(error_of({}, {"BELLOWS_RNAK=2"}), "unknown variable BELLOWS_RNAK; the nearest known one is BELLOWS_RANK");
  EXPECT_EQ(error_of({"--set", "sed=2"}), "--set sed=2: unknown key 'sed'; the nearest known one is 'seed'");
  const TomlFile file("min = 2\n\n[mfu]\ntreshold = 0.5\n");
  EXPECT_EQ(error_of({"--config", file.path()}),
            file.path() + ":4: unknown key 'mfu-treshold'; the nearest known one is 'mfu-threshold'");
}

TEST(Settings, AWrongValueNamesSourceValueAndWhatIsAllowed) {
  EXPECT_EQ(error_of({"--min", "0"}), "--min 0: expected a whole number from 1 to 64");
  EXPECT_EQ(error_of({"--min", "65"}), "--min 65: expected a whole number from 1 to 64");
  EXPECT_EQ(error_of({"--min", "2.5"}), "--min 2.5: expected a whole number from 1 to 64");
  EXPECT_EQ(error_of({"--min", ""}), "--min : expected a whole number from 1 to 64");
  EXPECT_EQ(error_of({"--seed", "-1"}), "--seed -1: expected a whole number");
  EXPECT_EQ(error_of({"--lr", "0"}), "--lr 0: expected a number above 0");
  EXPECT_EQ(error_of({"--lr", "nan"}), "--lr nan: expected a number above 0");
  EXPECT_EQ(error_of({"--min", "99999999999"}), "--min 99999999999: expected a whole number from 1 to 64");
  EXPECT_EQ(error_of({"--json=maybe"}), "--json maybe: expected true or false");
  EXPECT_EQ(error_of({"--precision", "fp8"}), "--precision fp8: expected one of fp32, bf16");
  EXPECT_EQ(error_of({}, {"BELLOWS_STEPS=many"}), "BELLOWS_STEPS=many: expected a whole number of at least 0");
  EXPECT_EQ(error_of({"--set", "steps=-1"}), "--set steps=-1: expected a whole number of at least 0");
  for (const char* line : {"min = \"2\"", "min = [2]", "min = 2.5", "min = true"}) {
    const TomlFile file(std::string("# a comment\n") + line + "\n");
    EXPECT_NE(error_of({"--config", file.path()}).find(":2: min = "), std::string::npos) << line;
    EXPECT_NE(error_of({"--config", file.path()}).find("from 1 to 64"), std::string::npos) << line;
  }
}

TEST(Settings, AValueThatIsOverriddenIsStillChecked) {
  EXPECT_EQ(error_of({"--min", "2"}, {"BELLOWS_MIN=zero"}), "BELLOWS_MIN=zero: expected a whole number from 1 to 64");
}

TEST(Settings, AFileThatIsMissingOrBrokenIsNamed) {
  EXPECT_EQ(error_of({"--config", "/no/such.toml"}),
            "cannot read the configuration file '/no/such.toml': No such file or directory");
  const TomlFile file("min = 2\nsteps = = 3\n");
  EXPECT_EQ(error_of({"--config", file.path()}).find(file.path() + ":2: not TOML"), 0u);
  const TomlFile twice("mfu-threshold = 0.5\n[mfu]\nthreshold = 0.25\n");
  EXPECT_NE(error_of({"--config", twice.path()}).find("is set twice"), std::string::npos);
}

TEST(Settings, StrayWordsAndMissingValuesAreErrors) {
  EXPECT_EQ(error_of({"job"}), "prog: unexpected 'job'; see prog --help");
  EXPECT_EQ(error_of({"--", "job"}), "prog: unexpected 'job' after --");
  EXPECT_EQ(error_of({"--min"}), "--min needs a value; see prog --help");
  EXPECT_EQ(error_of({"--min", "--json"}), "--min needs a value; see prog --help");
  EXPECT_EQ(error_of({"-x"}), "unknown flag -x; see prog --help");
  EXPECT_EQ(error_of({"--set", "min"}), "--set min: expected KEY=VALUE");
}

TEST(Settings, WordsAndTheCommandAfterTwoDashesArePassedThrough) {
  Program p;
  p.settings.words("FILE...", &p.words, "files").command("PROG ARGS...", &p.command, "what to start");
  ASSERT_TRUE(p.parse({"one", "-n4", "two", "--", "prog", "--min", "-h", "--"}));
  EXPECT_EQ(p.words, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(p.command, (std::vector<std::string>{"prog", "--min", "-h", "--"}));
  EXPECT_EQ(p.min, 4);
}

TEST(Settings, ARequiredSettingMayComeFromAnySource) {
  const auto program = [](std::string* out) {
    auto s = std::make_unique<Settings>("prog", "does things");
    s->add("data", out, "text to train on").required().value_name("FILE");
    return s;
  };
  std::string value;
  const char* argv[] = {"prog"};
  const char* none[] = {nullptr};
  const char* environment[] = {"BELLOWS_DATA=x", nullptr};
  EXPECT_TRUE(program(&value)->parse(1, argv, environment));
  EXPECT_EQ(value, "x");
  try {
    (void)program(&value)->parse(1, argv, none);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "prog needs --data FILE: text to train on");
  }
}

TEST(Settings, AcceptsTheRuntimesOwnVariablesAndThoseAProgramPassesIn) {
  EXPECT_EQ(error_of({}, {"BELLOWS_RANK=2", "BELLOWS_SPAWN_TIME=5", "BELLOWS_FAULT=x", "HOME=/", "BELLOWSX=1"}),
            "no error");
  Program p;
  p.settings.accept_environment({"BELLOWS_OTHER", "BELLOWS_MY_*"});
  EXPECT_EQ(p.error({}, {"BELLOWS_OTHER=1", "BELLOWS_MY_KEY=2"}), "no error");
  EXPECT_NE(error_of({}, {"BELLOWS_OTHER=1"}), "no error");
}

TEST(Settings, ALauncherKeepsWhatItDoesNotKnowForTheProgramItStarts) {
  const TomlFile file("min = 2\nlayers = 4\nfiles = [\"a\", \"b\"]\n");
  Program p;
  p.settings.leave_unknown();
  ASSERT_TRUE(p.parse({"--config", file.path(), "--set", "dim=384"}, {"BELLOWS_HEADS=6", "BELLOWS_MNI=3"}));
  EXPECT_EQ(p.min, 2);
  ASSERT_EQ(p.settings.left_over().size(), 5u);
  const auto find = [&](const std::string& key) {
    for (const auto& l : p.settings.left_over())
      if (l.key == key) return l;
    return LeftOver{};
  };
  EXPECT_EQ(find("layers").value, "4");
  EXPECT_EQ(find("layers").where, file.path() + ":2");
  EXPECT_EQ(find("files").value, "a,b");
  EXPECT_EQ(find("dim").from, LeftOver::From::kSet);
  EXPECT_EQ(find("heads").from, LeftOver::From::kEnvironment);
  EXPECT_EQ(find("mni").nearest, "min");
  EXPECT_NE(Program().error({"--layers", "4"}), "no error");  // a flag can only be the launcher's own
}

TEST(Settings, HelpShowsGroupsRangesDefaultsAndExamples) {
  Program p;
  p.settings.example("prog --min 2", "starts small");
  const std::string help = p.settings.help();
  for (const char* part :
       {"prog: does things", "World\n  -n, --min N", "smallest world size (a whole number from 1 to 64; default 1)",
        "Training\n", "(one of fp32, bf16; default fp32)", "--config FILE", "--set KEY=VALUE", "BELLOWS_MIN",
        "Examples\n  prog --min 2\n      starts small"})
    EXPECT_NE(help.find(part), std::string::npos) << part << "\nis not in\n" << help;
  testing::internal::CaptureStdout();
  EXPECT_FALSE(p.parse({"--min", "2", "--help"}));
  EXPECT_EQ(testing::internal::GetCapturedStdout(), help);
}

TEST(Settings, WrittenAsTomlTheyReadBackTheSame) {
  Program p;
  ASSERT_TRUE(p.parse({"--min=7", "--lr=1", "--data", "a \"quoted\\ name", "b", "--json", "--seed", "42"}));
  const TomlFile file(p.settings.to_toml());
  Program q;
  ASSERT_TRUE(q.parse({"--config", file.path()}));
  EXPECT_EQ(q.min, 7);
  EXPECT_EQ(q.lr, 1.0f);
  EXPECT_EQ(q.data, p.data);
  EXPECT_TRUE(q.json);
  EXPECT_EQ(q.seed, 42u);
  EXPECT_EQ(q.threshold, 0.3);
}

TEST(Settings, ATrainerWithItsOwnFlagsReadsEnvironmentOnly) {
  Program p;
  const char* environment[] = {"BELLOWS_MIN=9", nullptr};
  p.settings.parse_environment(environment);
  EXPECT_EQ(p.min, 9);
}

TEST(Nearest, CountsInsertionsDeletionsChangesAndSwaps) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", "abc"), 0u);
  EXPECT_EQ(edit_distance("mni", "min"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(nearest("lane", {"layers", "lanes", "lr"}), "lanes");
  EXPECT_EQ(nearest("x", {}), "");
}

}  // namespace
}  // namespace bellows
