#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/base/clock.h"

namespace bellows {

/// What one window of steps says about a generation: the only thing policies look at.
struct MfuWindow {
  std::uint64_t generation = 0;
  int world_size = 0;
  double seconds = 0;                 ///< wall time that the window covers
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  std::optional<double> mfu;          ///< model FLOPs / (wall time x peak of the world); nothing if the peak is unknown
  bool valid = false;                 ///< false: holds warm-up, a change of the world, or a stall the runtime caused
  std::string why_invalid;
  double tokens_per_second = 0;
  double data_wait_over_compute = 0;  ///< worst rank
  double straggler_share = 0;         ///< slowest rank's compute over the median, minus 1
  int slowest_rank = -1;
  std::string slowest_phase;          ///< "compute" or "data"
};

/// What a window is made of: one committed step.
struct WindowStep {
  std::int64_t step = 0;
  double seconds = 0;                  ///< wall time without evaluations: they are the trainer's wish, not a loss
  double tokens = 0;
  bool stalled = false;                ///< a checkpoint or another stall of the runtime's own fell into it
  std::vector<double> compute_ms;      ///< by rank, per lane held, so that uneven lanes are no straggler
  std::vector<double> data_ms;         ///< likewise
};

/// Cuts the steps of a run into windows of at least `length_s` seconds. Rank 0 has one. The first window of a generation is
/// blank (warm-up, or the change still in the caches); a window cut short by a change is invalid too.
class WindowBuilder {
 public:
  explicit WindowBuilder(double length_s) : length_s_(length_s) {}

  /// A new generation of `world_size` ranks with a joint peak of `peak_flops` (nothing: unknown).
  /// Returns the window that the change cut short, if it held a step.
  std::optional<MfuWindow> start_generation(std::uint64_t generation, int world_size, double flops_per_token,
                                            std::optional<double> peak_flops);
  /// Adds a step; returns the window that it completes.
  std::optional<MfuWindow> add(const WindowStep& step);

 private:
  MfuWindow close();

  const double length_s_;
  double flops_per_token_ = 0;
  std::optional<double> peak_flops_;
  std::uint64_t generation_ = 0;
  int world_size_ = 0;
  int windows_in_generation_ = 0;
  double seconds_ = 0, tokens_ = 0;
  std::int64_t first_step_ = 0, last_step_ = 0;
  bool stalled_ = false;
  std::vector<double> compute_ms_, data_ms_;
};

}  // namespace bellows
