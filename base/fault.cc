#include "bellows/base/fault.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <thread>

#include "bellows/base/log.h"
#include "bellows/base/nearest.h"

namespace bellows {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + 1)
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  return parts;
}

struct Pair {
  explicit Pair(const std::string& text) {
    const std::size_t equals = std::min(text.find('='), text.size());
    name = text.substr(0, equals);
    if (equals < text.size()) value = text.substr(equals + 1);
  }
  std::string name, value;
};

template <class T>
std::optional<T> number(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0)) return std::nullopt;
  return value;
}

}  // namespace

Result<FaultPlan::Fault> FaultPlan::parse_fault(const std::string& text) {
  const auto wrong = [&](const std::string& why) { return Result<Fault>::failure("fault '" + text + "': " + why); };
  const auto unknown = [&](const std::string& kind, const std::string& word, const std::vector<std::string>& known) {
    return wrong("unknown " + kind + " '" + word + "'; the nearest known one is '" + nearest(word, known) + "'");
  };
  const std::size_t colon = std::min(text.find(':'), text.size());
  Fault fault;
  fault.text = text;

  const Pair action(text.substr(0, colon));
  const bool wants_value = action.name == "exit" || action.name == "sleep";
  if (!wants_value && !action.value.empty()) return wrong("'" + action.name + "' takes no value");
  if (action.name == "kill") {
    fault.action = Action::kKill;
  } else if (action.name == "stop") {
    fault.action = Action::kStop;
  } else if (action.name == "throw") {
    fault.action = Action::kThrow;
  } else if (action.name == "exit") {
    const auto code = number<int>(action.value);
    if (!code || *code > 255) return wrong("exit needs a code from 0 to 255, as in exit=7");
    fault.action = Action::kExit;
    fault.exit_code = *code;
  } else if (action.name == "sleep") {
    const auto seconds = number<double>(action.value);
    if (!seconds || *seconds > 86400) return wrong("sleep needs seconds from 0 to 86400, as in sleep=0.5");
    fault.action = Action::kSleep;
    fault.sleep_s = *seconds;
  } else {
    return unknown("action", action.name, {"kill", "stop", "throw", "exit", "sleep"});
  }
  if (colon == text.size()) return fault;

  for (const std::string& part : split(text.substr(colon + 1), ',')) {
    const Pair pair(part);
    const auto value = number<std::int64_t>(pair.value);
    if (pair.name == "phase") {
      if (std::find(std::begin(kPhases), std::end(kPhases), pair.value) == std::end(kPhases))
        return unknown("phase", pair.value, {std::begin(kPhases), std::end(kPhases)});
      fault.phase = pair.value;
      continue;
    }
    if (pair.name != "rank" && pair.name != "step" && pair.name != "generation" && pair.name != "every")
      return unknown("key", pair.name, {"rank", "step", "phase", "generation", "every"});
    if (!value) return wrong(pair.name + " = '" + pair.value + "' is not a whole number of at least 0");
    if (pair.name == "rank") fault.rank = value;
    if (pair.name == "step") fault.step = value;
    if (pair.name == "generation") fault.generation = value;
    if (pair.name == "every") fault.every = *value != 0;
  }
  return fault;
}

Result<FaultPlan> FaultPlan::parse(const std::string& text) {
  FaultPlan plan;
  if (text.empty()) return plan;
  for (const std::string& part : split(text, ';')) {
    auto fault = parse_fault(part);
    if (!fault) return Result<FaultPlan>::failure(fault.error());
    plan.faults_.push_back(std::move(fault.value()));
  }
  return plan;
}

void FaultPlan::fire(int rank, std::int64_t step, std::string_view phase, std::uint64_t generation) {
  for (Fault& fault : faults_) {
    if (fault.fired && !fault.every) continue;
    if (fault.rank && *fault.rank != rank) continue;
    if (fault.step && *fault.step != step) continue;
    if (fault.generation && *fault.generation != static_cast<std::int64_t>(generation)) continue;
    if (!fault.phase.empty() && fault.phase != phase) continue;
    const bool first = !fault.fired;
    fault.fired = true;
    if (first) log::warn("fault '{}' fires: rank {}, step {}, {}", fault.text, rank, step, phase);
    carry_out(fault, rank, step, phase);
  }
}

void FaultPlan::carry_out(const Fault& fault, int rank, std::int64_t step, std::string_view phase) {
  switch (fault.action) {
    case Action::kKill:
      std::fflush(nullptr);
      kill(getpid(), SIGKILL);
      break;
    case Action::kStop:
      kill(getpid(), SIGSTOP);
      break;
    case Action::kExit:
      std::fflush(nullptr);
      _exit(fault.exit_code);  // no destructors: other threads are still at work
    case Action::kSleep:
      std::this_thread::sleep_for(std::chrono::duration<double>(fault.sleep_s));
      break;
    case Action::kThrow:
      throw InjectedFault("fault '" + fault.text + "' thrown on rank " + std::to_string(rank) + ", step " +
                          std::to_string(step) + ", " + std::string(phase));
  }
}

}  // namespace bellows
