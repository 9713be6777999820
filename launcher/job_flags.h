#pragma once
#include <string>
#include <vector>

#include "bellows/base/config.h"
#include "bellows/elastic/coordinator.h"

namespace bellows {

/// The settings that describe a job, shared by `bellows run` and `bellows coordinator`.
struct JobFlags {
  JobConfig job;
  CoordinatorOptions coordinator;
  double window_s = 300;
  std::string events;

  void add_to(Settings& settings);
  /// Fills in what depends on other settings. Throws UserError for values that cannot go together.
  void complete(const std::string& program);

 private:
  int min_ranks_ = 0, max_ranks_ = 0;  // 0: not given
  int failure_budget_ = -1;            // -1: not given
  std::string policy_;
  std::vector<std::string> ladder_;
};

}  // namespace bellows
