#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "bellows/base/nearest.h"
#include "ctl.h"
#include "run.h"
#ifdef BELLOWS_HAVE_DOCTOR
#include "doctor.h"
#endif
#ifdef BELLOWS_HAVE_PLOT
#include "plot.h"
#endif
#ifdef BELLOWS_HAVE_BENCH_COLLECTIVES
#include "bench_collectives.h"
#endif
#ifdef BELLOWS_HAVE_BENCH_OPTIMIZER
#include "bench_optimizer.h"
#endif
#ifdef BELLOWS_HAVE_BENCH_TRAINER
#include "bench_trainer.h"
#endif

namespace bellows {
namespace {

constexpr const char* kUsage =
    "bellows: training jobs that grow and shrink while they run\n"
    "\n"
    "  bellows run -n N [OPTIONS] -- PROG ARGS...   run a job on this host\n"
    "  bellows ctl status|scale N|drain HOST|events|stop\n"
    "                                               look at and steer a running job\n"
    "  bellows coordinator [OPTIONS]                coordinate a job whose agents come by themselves\n"
    "  bellows agent --coordinator HOST:PORT --token T -- PROG ARGS...\n"
    "                                               run ranks on this host for a coordinator elsewhere\n"
    "  bellows doctor                               what this host and this build offer\n"
    "  bellows report METRICS.jsonl                 what a run did, from its metrics\n"
    "  bellows plot METRICS.jsonl -o FILE.svg       its loss, MFU and world size as a picture\n"
    "  bellows bench collectives|optimizer|trainer  measure\n"
    "  bellows --version\n"
    "\n"
    "Each command has --help.\n";

struct Command {
  const char* name;
  std::function<int(const std::vector<std::string>& argv)> run;
};

/// For commands with a classical main.
[[maybe_unused]] auto classical(int (*main_function)(int, char**)) {
  return [main_function](const std::vector<std::string>& argv) {
    std::vector<std::string> words = argv;
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    return main_function(static_cast<int>(words.size()), pointers.data());
  };
}

int choose(const std::vector<Command>& commands, const std::string& prefix, std::vector<std::string> words) {
  std::vector<std::string> known;
  for (const Command& command : commands) known.push_back(command.name);
  if (words.empty()) {
    std::fprintf(stderr, "error: %s: what? One of:", prefix.c_str());
    for (const std::string& name : known) std::fprintf(stderr, " %s", name.c_str());
    std::fputs("\n", stderr);
    return 2;
  }
  for (const Command& command : commands) {
    if (words.front() != command.name) continue;
    words.front() = prefix + " " + words.front();
    return command.run(words);
  }
  const std::string close = nearest(words.front(), known);
  std::fprintf(stderr, "error: unknown command '%s %s'%s\n", prefix.c_str(), words.front().c_str(),
               close.empty() ? "; see bellows --help" : ("; did you mean " + close + "?").c_str());
  return 2;
}

int bench(const std::vector<std::string>& argv) {
  const std::vector<Command> benches = {
#ifdef BELLOWS_HAVE_BENCH_COLLECTIVES
      {"collectives", classical(bench_collectives_main)},
#endif
#ifdef BELLOWS_HAVE_BENCH_OPTIMIZER
      {"optimizer", classical(bench_optimizer_main)},
#endif
#ifdef BELLOWS_HAVE_BENCH_TRAINER
      {"trainer", classical(bench_trainer_main)},
#endif
  };
  return choose(benches, "bellows bench", {argv.begin() + 1, argv.end()});
}

int main(std::vector<std::string> words) {
  if (words.empty() || words.front() == "--help" || words.front() == "-h" || words.front() == "help") {
    std::fputs(kUsage, words.empty() ? stderr : stdout);
    return words.empty() ? 2 : 0;
  }
  if (words.front() == "--version") {
    std::puts("bellows " BELLOWS_VERSION);
    return 0;
  }
  const std::vector<Command> commands = {
      {"run", run_command},
      {"ctl", ctl_command},
      {"coordinator", coordinator_command},
      {"agent", agent_command},
#ifdef BELLOWS_HAVE_DOCTOR
      {"doctor", classical(doctor_main)},
#endif
#ifdef BELLOWS_HAVE_PLOT
      {"report", classical(report_main)},
      {"plot", classical(plot_main)},
#endif
      {"bench", bench},
  };
  return choose(commands, "bellows", std::move(words));
}

}  // namespace
}  // namespace bellows

int main(int argc, char** argv) { return bellows::main({argv + 1, argv + argc}); }
