#pragma once
#include <cstdint>
#include <optional>
#include <string>

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

}  // namespace bellows
