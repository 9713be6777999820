#include "bellows/runtime/mfu.h"

#include <algorithm>

namespace bellows {

std::optional<MfuWindow> WindowBuilder::start_generation(std::uint64_t generation, int world_size,
                                                         double flops_per_token, std::optional<double> peak_flops) {
  std::optional<MfuWindow> cut;
  if (seconds_ > 0) {
    cut = close();
    cut->valid = false;
    cut->why_invalid = "cut short by a change of the world";
  }
  generation_ = generation;
  world_size_ = world_size;
  flops_per_token_ = flops_per_token;
  peak_flops_ = peak_flops;
  windows_in_generation_ = 0;
  return cut;
}

std::optional<MfuWindow> WindowBuilder::add(const WindowStep& step) {
  if (seconds_ == 0) {
    first_step_ = step.step;
    compute_ms_.assign(step.compute_ms.size(), 0.0);
    data_ms_.assign(step.data_ms.size(), 0.0);
  }
  last_step_ = step.step;
  seconds_ += step.seconds;
  tokens_ += step.tokens;
  stalled_ = stalled_ || step.stalled;
  for (std::size_t r = 0; r < compute_ms_.size() && r < step.compute_ms.size(); ++r) {
    compute_ms_[r] += step.compute_ms[r];
    data_ms_[r] += step.data_ms[r];
  }
  if (seconds_ < length_s_) return std::nullopt;
  return close();
}

MfuWindow WindowBuilder::close() {
  MfuWindow window;
  window.generation = generation_;
  window.world_size = world_size_;
  window.seconds = seconds_;
  window.first_step = first_step_;
  window.last_step = last_step_;
  window.tokens_per_second = tokens_ / seconds_;
  if (peak_flops_ && *peak_flops_ > 0 && flops_per_token_ > 0)
    window.mfu = flops_per_token_ * tokens_ / (seconds_ * *peak_flops_);
  if (windows_in_generation_ == 0)
    window.why_invalid = "first window of a generation (warm-up)";
  else if (stalled_)
    window.why_invalid = "holds a stall of the runtime's own (checkpoint)";
  window.valid = window.why_invalid.empty();

  if (!compute_ms_.empty()) {
    std::vector<double> sorted = compute_ms_;
    std::sort(sorted.begin(), sorted.end());
    const double median = sorted[(sorted.size() - 1) / 2];
    const auto slowest = std::max_element(compute_ms_.begin(), compute_ms_.end());
    const auto waits = std::max_element(data_ms_.begin(), data_ms_.end());
    if (median > 0) {
      window.straggler_share = *slowest / median - 1;
      window.data_wait_over_compute = *waits / median;
    }
    // The phase in which one rank loses more than the others, and that rank.
    std::vector<double> sorted_data = data_ms_;
    std::sort(sorted_data.begin(), sorted_data.end());
    const double data_excess = *waits - sorted_data[(sorted_data.size() - 1) / 2];
    const bool data = data_excess > *slowest - median;
    window.slowest_rank = static_cast<int>(data ? waits - data_ms_.begin() : slowest - compute_ms_.begin());
    window.slowest_phase = data ? "data" : "compute";
  }
  ++windows_in_generation_;
  seconds_ = tokens_ = 0;
  stalled_ = false;
  return window;
}

}  // namespace bellows
