#pragma once
#include <cstdint>
#include <string>

namespace bellows {

/// Learning rate as a pure function of the step (0 for the first): rises linearly through the warm-up, then never rises
/// again; from the end of the decay on it stays at the floor.
struct Schedule {
  enum class Kind { kConstant, kCosine, kWarmupStableDecay };
  Kind kind = Kind::kConstant;
  double peak = 1e-3;
  double floor = 0.0;             ///< final value, as a share of the peak
  std::int64_t warmup_steps = 0;  ///< linear from peak/warmup to peak
  std::int64_t total_steps = 0;   ///< end of the decay; constant ignores it
  std::int64_t decay_steps = 0;   ///< warmup-stable-decay only: length of the final linear decay

  float at(std::int64_t step) const;
  /// Throws UserError naming the value that makes no schedule (a warm-up longer than all steps, a floor above 1).
  /// `at` does so too; a trainer calls this before it starts.
  void check() const;
  std::string fingerprint() const;
};

}  // namespace bellows
