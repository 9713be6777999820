#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launcher/job_process.h"

namespace bellows::testing_tools {

/// A small gpt-train job, run for real, and what its --metrics file says.
struct Training {
  int steps = 20;
  int stage = 2;
  std::string precision = "fp32";
  std::string bucket_mb = "25";
  std::vector<std::string> launcher;                 ///< words before `--`; empty: started plainly
  std::vector<std::string> more;                     ///< further words of gpt-train
  std::map<std::string, std::string> environment;
};

struct Metrics {
  std::vector<nlohmann::json> lines;                 ///< in order of writing
  /// Loss bits by step; a step that was repeated counts once, the last time.
  std::map<int, std::string> loss_bits() const;
  std::vector<nlohmann::json> events(const std::string& kind) const;
  std::string digests() const;                       ///< of parameters and optimizer; empty if the job did not end
  int last_step() const;
};
Metrics read_metrics(const std::string& path);

/// The command line of a training in `folder` (metrics in folder/metrics.jsonl).
std::vector<std::string> command_of(const Training& training, const std::string& folder);
/// Runs it to its end and expects exit code 0.
Metrics run_to_end(const Training& training);
/// What the same training gives on one rank that nothing happens to. Cached per (steps, precision).
const Metrics& undisturbed(int steps, const std::string& precision);
void expect_same(const Metrics& metrics, const Metrics& reference, const std::string& what);

}  // namespace bellows::testing_tools
