#include "bellows/elastic/policy.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

namespace bellows {
namespace {

/// Windows that may drive a decision, oldest first. An invalid one neither counts nor resets; the first one after a
/// change of the world (generations above 1) is blank whatever it says, for it holds what the change left behind.
std::vector<MfuWindow> counted_windows(const std::vector<MfuWindow>& windows) {
  std::vector<MfuWindow> counted;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const MfuWindow& w = windows[i];
    const bool blank = i == 0 && w.generation > 1;
    const bool sane = w.mfu && *w.mfu >= 0 && *w.mfu <= 1;  // false for NaN as well
    if (w.valid && !blank && sane) counted.push_back(w);
  }
  return counted;
}

/// Why the newest window does not count; empty if it does.
std::string why_not_counted(const std::vector<MfuWindow>& windows) {
  if (windows.empty()) return "no window yet";
  const MfuWindow& w = windows.back();
  if (!w.valid) return "window does not count: " + (w.why_invalid.empty() ? "marked invalid" : w.why_invalid);
  if (windows.size() == 1 && w.generation > 1) return "window does not count: the first one after a change is blank";
  if (!w.mfu) return "warning: MFU is unavailable (unknown peak), the world is left as it is";
  if (!(*w.mfu >= 0 && *w.mfu <= 1))
    return fmt::format("warning: MFU {:.3f} is outside [0, 1], a wrong peak or FLOP count; it drives nothing", *w.mfu);
  return "";
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// A loss that fewer or more ranks would not cure: what to mend instead, or empty.
std::string gated_by_cause(const std::vector<MfuWindow>& recent, const PolicyConfig& policy) {
  std::vector<double> data_wait, straggler;
  for (const MfuWindow& w : recent) {
    data_wait.push_back(w.data_wait_over_compute);
    straggler.push_back(w.straggler_share);
  }
  const MfuWindow& newest = recent.back();
  if (median(data_wait) > policy.data_wait_gate)
    return fmt::format(
        "{} for data {:.0f} % of the compute time (limit {:.0f} %): mend the input first",
        newest.slowest_phase == "data" ? fmt::format("rank {} waits", newest.slowest_rank) : "ranks wait",
        100 * median(data_wait), 100 * policy.data_wait_gate);
  if (median(straggler) > policy.straggler_gate)
    return fmt::format("rank {} is slower than the others by {:.0f} % in {} (limit {:.0f} %): mend that rank first",
                       newest.slowest_rank, 100 * median(straggler),
                       newest.slowest_phase.empty() ? "compute" : newest.slowest_phase, 100 * policy.straggler_gate);
  return "";
}

std::string list_of(const std::vector<MfuWindow>& recent) {
  std::string text;
  for (const MfuWindow& w : recent) text += fmt::format("{}{:.3f}", text.empty() ? "" : ", ", *w.mfu);
  return text;
}

/// What a rule wishes for, before cause gates: a size and the comparison that led to it.
struct Wish {
  std::optional<int> size;
  std::string why;
};

bool all_of(const std::vector<MfuWindow>& recent, auto&& condition) {
  return std::all_of(recent.begin(), recent.end(), [&](const MfuWindow& w) { return condition(*w.mfu); });
}

Wish threshold_rule(const std::vector<MfuWindow>& recent, int n, const PolicyConfig& policy) {
  const int least = policy.literal ? 0 : 1;
  // The small term keeps 0.2 * 5 from becoming 0.
  const int delta = std::max(least, static_cast<int>(std::floor(policy.fraction * n + 1e-9)));
  const double theta = policy.threshold;
  const bool low = all_of(recent, [&](double mfu) { return mfu < theta; });
  const bool high = all_of(recent, [&](double mfu) { return mfu >= theta; });
  const std::string seen =
      fmt::format("MFU {} in {} window{}", list_of(recent), recent.size(), recent.size() == 1 ? "" : "s");
  if (low) {
    const int target = std::max(n - delta, std::min(n, policy.min_ranks));
    if (target < n) return {target, fmt::format("{}, below {:.3f}: release {}", seen, theta, n - target)};
    return {{},
            fmt::format("{}, below {:.3f}, but {}", seen, theta,
                        delta == 0 ? "the share to release is less than one rank" : "already at the smallest size")};
  }
  if (high) {
    const int target = std::min(n + delta, std::max(n, policy.max_ranks));
    if (target > n) return {target, fmt::format("{}, at or above {:.3f}: ask for {}", seen, theta, target - n)};
    return {{},
            fmt::format("{}, at or above {:.3f}, but {}", seen, theta,
                        delta == 0 ? "the share to ask for is less than one rank" : "already at the largest size")};
  }
  return {{}, fmt::format("{}, on both sides of {:.3f}: keep", seen, theta)};
}

Wish guard_rule(const std::vector<MfuWindow>& recent, int n, const PolicyConfig& policy) {
  const std::vector<int> ladder = guard_ladder(policy);
  const double theta = policy.threshold;
  const std::string seen = fmt::format("MFU {} at {} rank{}", list_of(recent), n, n == 1 ? "" : "s");
  const auto at = std::lower_bound(ladder.begin(), ladder.end(), n);
  if (all_of(recent, [&](double mfu) { return mfu < theta; })) {
    if (at == ladder.begin())
      return {{}, fmt::format("{}, below {:.3f}, but already at the smallest size", seen, theta)};
    const int target = *std::prev(at);
    return {target, fmt::format("{}, below {:.3f}: release {}", seen, theta, n - target)};
  }
  const auto above = std::upper_bound(ladder.begin(), ladder.end(), n);
  if (above == ladder.end()) return {{}, fmt::format("{}: keep, already at the largest size", seen)};
  const int target = *above;
  // If throughput did not rise at all, the larger world would have this MFU: the worst case must still pass.
  const double worst = static_cast<double>(n) / target;
  if (all_of(recent, [&](double mfu) { return mfu * worst >= theta; }))
    return {target, fmt::format("{}, so at least {:.3f} at {}, at or above {:.3f}: ask for {}", seen,
                                *recent.back().mfu * worst, target, theta, target - n)};
  return {{},
          fmt::format("{}: keep ({} ranks could fall to {:.3f}, below {:.3f})", seen, target,
                      *recent.back().mfu * worst, theta)};
}

}  // namespace

std::vector<int> guard_ladder(const PolicyConfig& config) {
  std::vector<int> ladder = config.ladder;
  if (ladder.empty()) {
    for (int n = 1; n <= config.max_ranks; n *= 2) ladder.push_back(n);
    ladder.push_back(config.min_ranks);
    ladder.push_back(config.max_ranks);
  }
  std::erase_if(ladder, [&](int n) { return n < config.min_ranks || n > config.max_ranks; });
  std::sort(ladder.begin(), ladder.end());
  ladder.erase(std::unique(ladder.begin(), ladder.end()), ladder.end());
  return ladder;
}

Decision decide(const PolicyState& state, Nanos /*now*/, const PolicyConfig& policy) {
  Decision decision;
  decision.reason = why_not_counted(state.windows);
  decision.counted = decision.reason.empty();
  if (policy.name == "manual") {
    decision.reason = "manual: only an operator changes the world";
    return decision;
  }
  if (!decision.counted) return decision;

  std::vector<MfuWindow> recent = counted_windows(state.windows);
  const bool every_window = policy.literal && policy.name == "mfu-threshold";
  const std::size_t needed = every_window ? 1 : static_cast<std::size_t>(std::max(1, policy.windows));
  if (recent.size() < needed) {
    decision.reason = fmt::format("MFU {:.3f}: window {} of {}", *recent.back().mfu, recent.size(), needed);
    return decision;
  }
  recent.erase(recent.begin(), recent.end() - static_cast<std::ptrdiff_t>(needed));

  const Wish wish = policy.name == "mfu-threshold" ? threshold_rule(recent, state.world_size, policy)
                                                   : guard_rule(recent, state.world_size, policy);
  decision.reason = wish.why;
  if (!wish.size) return decision;
  decision.finding = gated_by_cause(recent, policy);
  if (decision.finding.empty()) {
    decision.target = wish.size;
  } else {
    decision.reason = wish.why + "; held back: " + decision.finding;
  }
  return decision;
}

}  // namespace bellows
