#include "bellows/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "bellows/base/error.h"

namespace bellows {
namespace {

std::string exact(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

// Share of the way from `begin` to `end`, within [0, 1].
double progress(std::int64_t step, std::int64_t begin, std::int64_t end) {
  return std::clamp(static_cast<double>(step - begin) / static_cast<double>(std::max<std::int64_t>(end - begin, 1)),
                    0.0, 1.0);
}

// From 1 to 0.
double cosine(double x) { return 0.5 * (1.0 + std::cos(3.14159265358979323846 * x)); }

const char* name(Schedule::Kind kind) {
  switch (kind) {
    case Schedule::Kind::kConstant:
      return "constant";
    case Schedule::Kind::kCosine:
      return "cosine";
    case Schedule::Kind::kWarmupStableDecay:
      return "wsd";
  }
  return "?";
}

void require(bool good, const std::string& what) {
  if (!good) throw UserError("learning rate schedule: " + what);
}

}  // namespace

void Schedule::check() const {
  require(std::isfinite(peak) && peak >= 0, "peak " + exact(peak) + " must be a number of at least 0");
  require(floor >= 0 && floor <= 1, "floor " + exact(floor) + " must be a share of the peak from 0 to 1");
  require(warmup_steps >= 0, "warm-up of " + std::to_string(warmup_steps) + " steps must be at least 0");
  if (kind == Kind::kConstant) return;
  require(total_steps >= 1,
          std::string(name(kind)) + " needs its total steps; " + std::to_string(total_steps) + " must be at least 1");
  require(warmup_steps <= total_steps, "warm-up of " + std::to_string(warmup_steps) + " steps is longer than all " +
                                           std::to_string(total_steps) + " steps");
  if (kind == Kind::kWarmupStableDecay)
    require(decay_steps >= 1 && decay_steps <= total_steps - warmup_steps,
            "decay of " + std::to_string(decay_steps) + " steps must be from 1 to " +
                std::to_string(total_steps - warmup_steps) + ", what warm-up leaves of all steps");
}

float Schedule::at(std::int64_t step) const {
  check();
  step = std::max<std::int64_t>(step, 0);
  if (step < warmup_steps)
    return static_cast<float>(peak * (static_cast<double>(step + 1) / static_cast<double>(warmup_steps)));
  double share = 1.0;  // of the way from floor to peak
  if (kind == Kind::kCosine) share = cosine(progress(step, warmup_steps, total_steps));
  if (kind == Kind::kWarmupStableDecay) share = 1.0 - progress(step, total_steps - decay_steps, total_steps);
  if (kind != Kind::kConstant && step >= total_steps) share = 0.0;
  return static_cast<float>(peak * (floor + (1.0 - floor) * share));
}

std::string Schedule::fingerprint() const {
  return std::string(name(kind)) + "(peak=" + exact(peak) + ",floor=" + exact(floor) +
         ",warmup=" + std::to_string(warmup_steps) + ",total=" + std::to_string(total_steps) +
         ",decay=" + std::to_string(decay_steps) + ")";
}

}  // namespace bellows
