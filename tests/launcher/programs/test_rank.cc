// A rank without mathematics, for tests of the launcher and the protocol: it joins, "trains" by one exchange per step,
// follows every change of the world and writes down what it saw.
//
//   test_rank [--steps N] [--step-ms M] [--lanes V] [--fingerprint F] [--trace FILE] [--mfu X] [--window-steps K]
//             [--at STEP:RANK:WHAT] [--helper] [--say TEXT] [--free]
// --free: no exchange, each rank steps by itself: for tests in which nobody carries exchanges for a while.
// WHAT: exit=CODE | kill | stop | throw | error (what a person must mend, exit code 2) | hang

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>

#include "bellows/base/error.h"
#include "bellows/elastic/member.h"

namespace bellows {
namespace {

struct Options {
  long steps = 50;
  int step_ms = 10;
  int lanes = 16;
  std::string fingerprint = "test";
  std::string trace;
  double mfu = -1;
  long window_steps = 5;
  long at_step = -1;
  int at_rank = -1;
  std::string at_what;
  bool helper = false;
  bool free = false;
  std::string say;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--helper") {
      o.helper = true;
      continue;
    }
    if (flag == "--free") {
      o.free = true;
      continue;
    }
    if (i + 1 >= argc) throw UserError("test_rank: " + flag + " needs a value");
    const std::string value = argv[++i];
    if (flag == "--steps") {
      o.steps = std::stol(value);
    } else if (flag == "--step-ms") {
      o.step_ms = std::stoi(value);
    } else if (flag == "--lanes") {
      o.lanes = std::stoi(value);
    } else if (flag == "--fingerprint") {
      o.fingerprint = value;
    } else if (flag == "--trace") {
      o.trace = value;
    } else if (flag == "--mfu") {
      o.mfu = std::stod(value);
    } else if (flag == "--window-steps") {
      o.window_steps = std::stol(value);
    } else if (flag == "--say") {
      o.say = value;
    } else if (flag == "--at") {
      const auto first = value.find(':'), second = value.find(':', first + 1);
      o.at_step = std::stol(value.substr(0, first));
      o.at_rank = std::stoi(value.substr(first + 1, second - first - 1));
      o.at_what = value.substr(second + 1);
    } else {
      throw UserError("test_rank: unknown flag " + flag);
    }
  }
  return o;
}

void misbehave(const std::string& what) {
  std::printf("about to %s\n", what.c_str());
  std::fflush(stdout);
  if (what.rfind("exit=", 0) == 0) std::_Exit(std::stoi(what.substr(5)));
  if (what == "kill") ::raise(SIGKILL);
  if (what == "stop") ::raise(SIGSTOP);
  if (what == "throw") throw std::runtime_error("thrown on purpose");
  if (what == "error") throw UserError("the file that a person forgot");
  if (what == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
}

class Rank {
 public:
  explicit Rank(const Options& options) : o_(options), member_(make_member_from_environment()) {}

  int run() {
    member_->join({o_.fingerprint, o_.lanes});
    std::uint64_t generation = 0;
    while (true) {
      const auto membership = member_->await_membership(generation, Deadline::after(300));
      if (!membership) {
        trace("gone after generation %lu", static_cast<unsigned long>(generation));
        return 0;
      }
      const std::uint64_t before = generation;
      generation = membership->generation;
      try {
        const World transition = *membership->transition_world_of(member_->id());
        catch_up(transition);
        const auto world = membership->world_of(member_->id());
        if (!world) {
          trace("released in generation %lu at step %ld", static_cast<unsigned long>(generation), step_);
          member_->leave(false);
          return 0;
        }
        trace("generation %lu rank %d of %d step %ld pid %d", static_cast<unsigned long>(generation), world->rank,
              world->world_size, step_, static_cast<int>(::getpid()));
        decided_unix_ms_ = before == 0 ? 0 : membership->decided_unix_ms;
        from_ = size_;
        size_ = world->world_size;
        reason_ = membership->reason;
        if (train(*world)) {
          member_->leave(true);
          trace("finished at step %ld", step_);
          return 0;
        }
      } catch (const CommError& error) {
        trace("lost generation %lu at step %ld: %s", static_cast<unsigned long>(generation), step_, error.what());
        member_->report_failure(generation, error.ranks(), error.what());
      }
    }
  }

 private:
  /// All ranks of the transition take the newest step among them: what a joiner gets from living ranks.
  void catch_up(const World& world) {
    const auto steps = member_->bootstrap().exchange(world, "catch-up", std::to_string(step_), Deadline::after(60));
    for (const std::string& step : steps) step_ = std::max(step_, std::stol(step));
  }

  /// True when the training is over, false when the world is to change.
  bool train(const World& world) {
    while (step_ < o_.steps) {
      if (step_ == o_.at_step && world.rank == o_.at_rank && !::getenv("BELLOWS_TEST_NO_FAULT")) {
        // Only the first process that gets here: a replacement must not fall into the same hole.
        const std::string mark = o_.trace.empty() ? "" : o_.trace + ".fault";
        const int fd = mark.empty() ? 0 : ::open(mark.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600);
        if (fd >= 0) misbehave(o_.at_what);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(o_.step_ms));
      // The commit: what every rank knows of a newer generation and of a stop, agreed by all.
      const std::string mine = std::to_string(member_->newest_generation()) + (member_->stop_requested() ? " 1" : " 0");
      std::vector<std::string> all = {mine};
      if (!o_.free)
        all = member_->bootstrap().exchange(world, "step-" + std::to_string(step_), mine, Deadline::after(60));
      std::uint64_t newest = 0;
      bool stop = false;
      for (const std::string& one : all) {
        newest = std::max<std::uint64_t>(newest, std::stoull(one));
        stop = stop || one.back() == '1';
      }
      ++step_;
      report(world);
      if (o_.free && step_ % 10 == 0) trace("has done step %ld", step_);
      if (stop) trace("stopping at step %ld", step_);
      if (stop) return true;
      if (newest > world.generation) return false;
    }
    return true;
  }

  void report(const World& world) {
    StepReport report;
    report.generation = world.generation;
    report.rank = world.rank;
    report.step = step_;
    report.total_steps = o_.steps;
    report.loss = 10.0 / static_cast<double>(step_);
    report.tokens_per_second = 1000.0 * world.world_size;
    if (o_.mfu >= 0) report.mfu = o_.mfu;
    member_->report(report);
    if (world.rank != 0) return;
    if (decided_unix_ms_ != 0) {
      using namespace std::chrono;
      const auto now = duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
      const double ms = static_cast<double>(now - decided_unix_ms_);
      member_->report(ChangeReport{world.generation, from_, world.world_size, reason_, 0, ms});
      decided_unix_ms_ = 0;
    }
    if (o_.mfu < 0 || step_ % o_.window_steps != 0) return;
    MfuWindow window;
    window.generation = world.generation;
    window.world_size = world.world_size;
    window.first_step = step_ - o_.window_steps;
    window.last_step = step_;
    window.mfu = o_.mfu;
    window.valid = true;
    member_->report(window);
  }

  template <class... Args>
  void trace(const char* format, Args... args) {
    if (o_.trace.empty()) return;
    char text[512];
    std::snprintf(text, sizeof(text), format, args...);
    const std::string line = member_->id() + " " + text + "\n";
    const int fd = ::open(o_.trace.c_str(), O_CREAT | O_APPEND | O_WRONLY, 0600);
    [[maybe_unused]] const auto written = ::write(fd, line.data(), line.size());
    ::close(fd);
  }
  void trace(const char* text) { trace("%s", text); }

  const Options o_;
  const std::unique_ptr<Member> member_;
  long step_ = 0;
  int size_ = 0, from_ = 0;
  std::string reason_;
  std::int64_t decided_unix_ms_ = 0;
};

/// A helper of the kind that data loaders start: in a session of its own, so no process group reaches it.
void start_helper() {
  if (::fork() != 0) return;
  ::setsid();
  ::execlp("sleep", "bellows-test-helper", "600", nullptr);
  std::_Exit(127);
}

}  // namespace
}  // namespace bellows

int main(int argc, char** argv) {
  try {
    const bellows::Options options = bellows::parse(argc, argv);
    if (options.helper) bellows::start_helper();
    if (!options.say.empty()) std::printf("%s\n", options.say.c_str());
    std::fflush(stdout);
    return bellows::Rank(options).run();
  } catch (const bellows::UserError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
