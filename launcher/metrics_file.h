#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace bellows {

/// A metrics file (docs/cli.md) as `bellows plot` and `bellows report` need it.
struct MetricsFile {
  struct Step {
    std::int64_t step = 0;
    double loss = 0;
    std::int64_t tokens = 0;
    double step_ms = 0;
    std::optional<double> mfu;
    int world_size = 1;
  };
  struct Evaluation {
    std::int64_t step = 0;
    double loss = 0;
  };
  struct WorldChange {
    std::int64_t step = 0;
    int from = 0, to = 0;
    bool planned = true;
    std::string reason;
    double bytes_moved = 0, ms = 0;
  };

  std::vector<Step> steps;              ///< ascending, each once: the last time it was committed
  std::vector<Evaluation> evaluations;  ///< ascending, each once
  std::vector<WorldChange> changes;     ///< in order of the file
  std::int64_t repeated = 0;            ///< steps committed again after a loss
  std::int64_t skipped = 0;             ///< with non-finite gradients
  /// Sums over all lines, repeated steps included: time that really passed.
  double wall_ms = 0, tokens_with_repeats = 0;
  std::vector<std::pair<std::string, double>> accounts_ms;  ///< as first met in the file
  bool ended = false;
  std::string parameters_digest, optimizer_digest;

  /// Throws UserError: naming the file if it cannot be read or holds no step, naming file and line if a line is broken.
  /// A last line without an end is what a running job is just writing, and left out.
  static MetricsFile read(const std::string& path);

  double mean_mfu() const;  ///< by time; 0 if no step has one
  bool has_mfu() const;
  /// Mean loss over the last `count` steps.
  double final_loss(std::size_t count = 20) const;
};

/// "1 min 54 s", "3 h 05 min", "0.8 s"
std::string duration_text(double ms);
/// "1.599", or "not finite"
std::string loss_text(double loss, int digits);
/// "2,867,200"
std::string grouped(std::int64_t number);
/// Shares of `values` in tenths of a percent that add up to 1000 exactly (largest remainders get the rest).
std::vector<int> tenths_of_percent(const std::vector<double>& values);

}  // namespace bellows
