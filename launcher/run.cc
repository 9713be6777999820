#include "run.h"

#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "agent.h"
#include "bellows/base/error.h"
#include "bellows/base/hardware.h"
#include "bellows/base/log.h"
#include "bellows/elastic/coordinator.h"
#include "bellows/elastic/session.h"
#include "binding.h"
#include "command.h"
#include "console.h"
#include "guard.h"
#include "job_file.h"
#include "job_flags.h"
#include "progress.h"
#include "token.h"

namespace bellows {
namespace {

const std::vector<std::string> kLogLevels = {"trace", "debug", "info", "warn", "error"};

std::string base_name(const std::string& path) { return std::filesystem::path(path).filename().string(); }

std::string joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, " ")); }

/// What SIGINT and SIGTERM mean while a job runs: the first asks for an orderly stop, the second ends it.
class StopSignals {
 public:
  void watch(Coordinator& coordinator, Console& console) {
    MutexLock lock(mutex_);
    coordinator_ = &coordinator;
    console_ = &console;
    if (count_ > 0) act();  // it came while the job was being set up
  }
  void done() {
    MutexLock lock(mutex_);
    coordinator_ = nullptr;
    console_ = nullptr;
  }
  void on_signal(int signal) {
    MutexLock lock(mutex_);
    signal_ = signal;
    ++count_;
    if (coordinator_) act();
  }
  /// The last one that came; 0: none.
  int signal() {
    MutexLock lock(mutex_);
    return signal_;
  }

 private:
  void act() BELLOWS_REQUIRES(mutex_) {
    const std::string name = signal_ == SIGINT ? "SIGINT" : signal_ == SIGTERM ? "SIGTERM" : "SIGHUP";
    if (count_ == 1) {
      console_->line("bellows: " + name + ": stopping in order after this step; once more ends the job at once");
      coordinator_->stop(name + " at the launcher");
    } else {
      coordinator_->kill(name + " a second time", 128 + signal_);
    }
  }

  Mutex mutex_;
  Coordinator* coordinator_ BELLOWS_GUARDED_BY(mutex_) = nullptr;
  Console* console_ BELLOWS_GUARDED_BY(mutex_) = nullptr;
  int count_ BELLOWS_GUARDED_BY(mutex_) = 0;
  int signal_ BELLOWS_GUARDED_BY(mutex_) = 0;
};

Progress::Style style_of(const std::string& name) {
  if (name == "bar") return Progress::Style::kBar;
  if (name == "plain") return Progress::Style::kPlain;
  if (name == "none") return Progress::Style::kNone;
  return ::isatty(STDERR_FILENO) ? Progress::Style::kBar : Progress::Style::kPlain;
}

void print_outcome(Console& console, const Outcome& outcome) {
  console.line("bellows: " + outcome.text);
  if (outcome.last_lines.empty()) return;
  console.line("bellows: its last lines:");
  std::size_t begin = 0;
  for (std::size_t end; (end = outcome.last_lines.find('\n', begin)) != std::string::npos; begin = end + 1)
    console.line("  | " + outcome.last_lines.substr(begin, end - begin));
}

struct RunFlags {
  JobFlags job;
  BindFlags bind;
  int slots = 0;
  bool show_topology = false;
  std::string log_dir, progress = "auto", log_level = "info";
  double log_limit_mb = 64;
  std::map<std::string, std::string> rank_environment;
  std::set<std::string> own_variables;
};

std::string variable_of(const std::string& key) {
  std::string name = "BELLOWS_";
  for (const char c : key) name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

/// The ranks read the environment only: what the file and --set hold for them is put there. A variable that was set
/// by the person wins over the file, --set over both; what is this command's own the ranks do not see.
void settings_for_ranks(const Settings& settings, std::map<std::string, std::string>* environment) {
  for (const auto from : {LeftOver::From::kFile, LeftOver::From::kEnvironment, LeftOver::From::kSet}) {
    for (const LeftOver& left : settings.left_over()) {
      if (left.from == from) (*environment)[variable_of(left.key)] = left.value;
    }
  }
}

/// Variables that say something to this command alone: a rank would take them for a misspelt setting of its own.
std::set<std::string> own_variables(const Settings& settings) {
  std::set<std::string> own = {"BELLOWS_CONFIG"};
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    if (text.rfind("BELLOWS_", 0) == 0) own.insert(text.substr(0, text.find('=')));
  }
  for (const std::string& name : runtime_environment()) {
    if (name != "BELLOWS_CONFIG") own.erase(name);
  }
  for (const LeftOver& left : settings.left_over()) own.erase(variable_of(left.key));
  return own;
}

/// The host's peak is measured once, before there are ranks that would disturb each other's measurement.
void measure_peak(std::map<std::string, std::string>* environment) {
  const MatrixPeak peak = matrix_peak(std::getenv("BELLOWS_PEAK_F32"), std::getenv("BELLOWS_PEAK_BF16"));
  (*environment)["BELLOWS_PEAK_F32"] = fmt::format("{:.6e}", peak.f32);
  (*environment)["BELLOWS_PEAK_BF16"] = fmt::format("{:.6e}", peak.bf16);
}

/// Gives each slot of the agent its processors.
void bind_slots(const BindFlags& flags, bool fixed_world, Console& console, AgentOptions* agent) {
  const HostTopology host = flags.host(agent->host.empty() ? this_host().name : agent->host);
  const BindPlan plan = flags.plan(host, agent->slots, allowed_processors(), fixed_world);
  if (plan.failed) console.line("bellows: warning: ranks are not bound: " + plan.note);
  if (!plan.failed && !plan.note.empty()) console.line("bellows: warning: " + plan.note);
  agent->processors = plan.slots;
  agent->bind_strict = flags.strict;
  // A bound rank sees its own processors only; its share of the host's peak depends on all that ranks may use.
  std::set<int> all;
  for (const CpuSet& cpus : plan.slots) all.insert(cpus.begin(), cpus.end());
  if (!all.empty()) agent->environment["BELLOWS_SPAWN_CORES"] = fmt::format("{}", all.size());
}

int run_job(RunFlags& flags, const std::vector<std::string>& program) {
  init_log("bellows", flags.log_level);
  const auto signals = std::make_shared<StopSignals>();
  on_signals([signals](int signal) { signals->on_signal(signal); });

  const JobConfig& job = flags.job.job;
  const Progress::Style style = style_of(flags.progress);
  Console console(style == Progress::Style::kBar);
  Coordinator coordinator(job, flags.job.coordinator);
  const PublishedJob published({job.name, coordinator.address(), flags.job.coordinator.token, 0, 0, joined(program)});

  AgentOptions agent;
  agent.coordinator = coordinator.address();
  agent.token = flags.job.coordinator.token;
  agent.slots = flags.slots > 0 ? flags.slots : job.max_ranks;
  agent.command = program;
  agent.log_dir = flags.log_dir;
  agent.log_limit = static_cast<std::size_t>(flags.log_limit_mb * 1024 * 1024);
  agent.forward = [&console](const std::string& line, bool error) { console.line(line, !error); };
  agent.environment = flags.rank_environment;
  measure_peak(&agent.environment);
  agent.environment["BELLOWS_JOB"] = job.name;
  agent.environment["BELLOWS_WINDOW"] = fmt::format("{}", flags.job.window_s);
  agent.environment["BELLOWS_SPAWN_MAX_RANKS"] = fmt::format("{}", job.max_ranks);
  agent.without = flags.own_variables;
  bind_slots(flags.bind, job.min_ranks == job.max_ranks, console, &agent);

  if (style != Progress::Style::kNone)
    console.line(fmt::format("bellows: job {}: {} rank{} (min {}, max {}, {}), coordinator at {}", job.name, job.ranks,
                             job.ranks == 1 ? "" : "s", job.min_ranks, job.max_ranks, job.policy.name,
                             coordinator.address()));
  {
    const Progress progress(coordinator, console, style, flags.job.events);
    signals->watch(coordinator, console);
    Agent(std::move(agent)).run();
    coordinator.wait(Deadline::after(5));
    signals->done();
  }
  Outcome outcome = coordinator.wait(Deadline::after(0)).value_or(Outcome{1, "the agent ended before the job", ""});
  const bool never_began = coordinator.status().generation == 0;
  if (outcome.exit_code == 0 && never_began && signals->signal() != 0) outcome.exit_code = 128 + signals->signal();
  if (outcome.exit_code != 0 || style != Progress::Style::kNone) print_outcome(console, outcome);
  return outcome.exit_code;
}

}  // namespace

int run_command(const std::vector<std::string>& argv) {
  RunFlags flags;
  std::vector<std::string> program;
  Settings settings(argv[0], "runs PROG on this host as a job of several ranks that may grow and shrink");
  settings.command("PROG ARGS...", &program, "what each rank runs");
  flags.job.add_to(settings);
  settings.group("This host");
  settings.add("slots", &flags.slots, "processes this host may run; 0: as --max").at_least(0);
  flags.bind.add_to(settings);
  settings.add("show-topology", &flags.show_topology,
               "print the host and where each rank would run, and start nothing");
  settings.add("log-dir", &flags.log_dir, "write the output of every rank to a file in this directory")
      .value_name("DIR");
  settings.add("log-limit", &flags.log_limit_mb, "largest size of such a file in MiB").above(0);
  settings.add("progress", &flags.progress, "how to show progress: auto takes the bar on a terminal")
      .choices({"auto", "bar", "plain", "none"});
  settings.add("log-level", &flags.log_level, "what the launcher itself logs").choices(kLogLevels);
  settings.example("bellows run -n 4 --min 1 -- gpt-train --data text.txt",
                   "four ranks, as few as one if more do not pay");
  settings.leave_unknown();
  return run_main([&] {
    if (!parse_words(settings, argv)) return 0;
    if (flags.show_topology) {
      flags.job.complete(program.empty() ? "job" : base_name(program.front()));
      const JobConfig& job = flags.job.job;
      const int slots = flags.slots > 0 || !flags.bind.topology_file.empty() ? flags.slots : job.max_ranks;
      std::fputs(show_topology(flags.bind, job.ranks, slots, job.min_ranks == job.max_ranks).c_str(), stdout);
      return 0;
    }
    if (program.empty())
      throw UserError(argv[0] +
                      ": what to run comes after --, for instance: bellows run -n 4 -- gpt-train --data text.txt");
    flags.job.complete(base_name(program.front()));
    settings_for_ranks(settings, &flags.rank_environment);
    flags.own_variables = own_variables(settings);
    return guarded([&] { return run_main([&] { return run_job(flags, program); }); });
  });
}

int coordinator_command(const std::vector<std::string>& argv) {
  JobFlags flags;
  std::string log_level = "info";
  Settings settings(argv[0], "coordinates a job whose agents and ranks come by themselves");
  flags.add_to(settings);
  settings.add("log-level", &log_level, "what the coordinator itself logs").choices(kLogLevels);
  settings.leave_unknown();
  return run_main([&] {
    if (!parse_words(settings, argv)) return 0;
    const bool given = !flags.coordinator.token.empty();
    flags.complete("job");
    // A coordinator that follows a dead one must not give ids that were in use.
    flags.job.id_prefix = "c" + random_hex(4) + "-";
    init_log("coordinator", log_level);
    const auto signals = std::make_shared<StopSignals>();
    on_signals([signals](int signal) { signals->on_signal(signal); });
    Console console(false);
    Coordinator coordinator(flags.job, flags.coordinator);
    const PublishedJob published(
        {flags.job.name, coordinator.address(), flags.coordinator.token, 0, 0, "bellows coordinator"});
    console.line(fmt::format("bellows: job {}: coordinator at {}", flags.job.name, coordinator.address()));
    if (!given) console.line("bellows: token: " + flags.coordinator.token, true);
    std::optional<Outcome> outcome;
    {
      const Progress progress(coordinator, console, Progress::Style::kPlain, flags.events);
      signals->watch(coordinator, console);
      while (!(outcome = coordinator.wait(Deadline::after(3600)))) {
      }
      signals->done();
      // Let everybody hear that it is over before the door closes.
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    print_outcome(console, *outcome);
    return outcome->exit_code;
  });
}

int agent_command(const std::vector<std::string>& argv) {
  AgentOptions options;
  BindFlags bind;
  std::vector<std::string> program;
  options.slots = static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  double window_s = 300;
  std::string log_level = "info";
  Settings settings(argv[0], "runs ranks of PROG on this host as a coordinator elsewhere asks");
  settings.command("PROG ARGS...", &program, "what each rank runs");
  settings.add("coordinator", &options.coordinator, "where the coordinator listens").value_name("HOST:PORT").required();
  settings.add("token", &options.token, "the job's secret (better in BELLOWS_TOKEN: others can see a command line)")
      .required();
  settings.add("slots", &options.slots, "processes this host may run").at_least(1);
  bind.add_to(settings);
  settings.add("host", &options.host, "this host's name in the job; not given: its own").value_name("NAME");
  settings.add("window", &window_s, "length of an MFU window").above(0).value_name("SEC");
  settings.add("log-dir", &options.log_dir, "write the output of every rank to a file in this directory")
      .value_name("DIR");
  settings.add("log-level", &log_level, "what the agent itself logs").choices(kLogLevels);
  settings.leave_unknown();
  return run_main([&] {
    if (!parse_words(settings, argv)) return 0;
    if (program.empty()) throw UserError(argv[0] + ": what a rank runs comes after --");
    options.command = program;
    settings_for_ranks(settings, &options.environment);
    options.without = own_variables(settings);
    options.environment["BELLOWS_WINDOW"] = fmt::format("{}", window_s);
    return guarded([&] {
      return run_main([&] {
        init_log("agent", log_level);
        measure_peak(&options.environment);
        Console console(false);
        options.forward = [&console](const std::string& line, bool error) { console.line(line, !error); };
        bind_slots(bind, false, console, &options);  // whether the world is fixed only the coordinator knows
        Agent agent(options);
        std::atomic<int> signalled = 0;
        // The handler's thread lives as long as this process, which ends right after run() returns.
        on_signals([&agent, &signalled](int signal) {
          signalled = signal;
          agent.kill();
        });
        agent.run();
        return signalled ? 128 + signalled : 0;
      });
    });
  });
}

}  // namespace bellows
