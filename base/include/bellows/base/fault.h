#pragma once
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/base/error.h"

namespace bellows {

/// What `throw` throws.
class InjectedFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Faults that tests and demonstrations order in BELLOWS_FAULT:
///
///     plan   = fault { ";" fault }
///     fault  = action [ ":" key "=" value { "," key "=" value } ]
///     action = "kill" | "stop" | "throw" | "exit=" CODE | "sleep=" SECONDS
///     key    = "rank" | "step" | "phase" | "generation" | "every"
///
/// `kill:rank=2,step=5,phase=backward` kills rank 2 (SIGKILL) in the backward pass of step 5; `stop` is SIGSTOP. A key
/// left out matches anything: `sleep=0.05:rank=2,every=1` makes rank 2 slow in every phase of every step. Each fault
/// fires once in a process, with `every=1` whenever it matches. A replacement of a killed rank is a new process:
/// `generation=1` keeps it alive.
class FaultPlan {
 public:
  static constexpr std::string_view kPhases[] = {"data",   "forward", "backward",  "reduce",
                                                 "commit", "gather",  "checkpoint"};

  FaultPlan() = default;
  /// The empty text is the empty plan. A failure names the part that is wrong and the known words.
  static Result<FaultPlan> parse(const std::string& text);

  bool empty() const { return faults_.empty(); }
  /// Carries out what is due here. Called from one thread.
  void fire(int rank, std::int64_t step, std::string_view phase, std::uint64_t generation = 0);

 private:
  enum class Action { kKill, kStop, kThrow, kExit, kSleep };
  struct Fault {
    std::string text;
    Action action = Action::kKill;
    int exit_code = 0;
    double sleep_s = 0;
    std::optional<std::int64_t> rank, step, generation;
    std::string phase;
    bool every = false, fired = false;
  };
  static Result<Fault> parse_fault(const std::string& text);
  static void carry_out(const Fault& fault, int rank, std::int64_t step, std::string_view phase);

  std::vector<Fault> faults_;
};

}  // namespace bellows
