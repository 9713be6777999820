#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

#include "bellows/base/error.h"
#include "bellows/comm/costs.h"
#include "collectives_bench.h"

namespace bellows {
namespace {

constexpr int kRounds = 3;  // each with processes and memory of its own

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<std::string> algorithms_asked(const CollectivesOptions& options, const CostedWorld& world,
                                          bool by_messages) {
  std::vector<std::string> algorithms;
  const bool all = options.algorithms.front() == "all";
  for (const std::string& name : fitting_algorithms(world, all && by_messages))
    if (all || std::find(options.algorithms.begin(), options.algorithms.end(), name) != options.algorithms.end())
      algorithms.push_back(name);
  if (algorithms.empty())
    throw UserError("none of these algorithms can serve " + std::to_string(options.ranks) + " ranks");
  return algorithms;
}

/// One call and size: what each algorithm took, over all rounds.
struct Case {
  CollectivesRow first;
  std::map<std::string, std::vector<double>> us;
  std::uint64_t wrong = 0;
};

std::vector<Case> measure(const CollectivesOptions& options) {
  std::vector<Case> cases;
  const std::size_t algorithms = options.algorithms.size();
  for (int round = 0; round < kRounds; ++round) {
    const auto rows = run_collectives_ranks(options).rows;  // those of one case stand together
    cases.resize(rows.size() / algorithms);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Case& one = cases[i / algorithms];
      if (i % algorithms == 0) one.first = rows[i];
      one.us[rows[i].algorithm].push_back(rows[i].median_us);
      one.wrong += rows[i].wrong;
    }
  }
  return cases;
}

}  // namespace

int sweep_algorithms(const CollectivesOptions& asked) {
  CollectivesOptions options = asked;
  options.waiting = options.priority = false;
  const CostedWorld world = costed_world_of(options.ranks);
  const bool by_messages = options.transport != "shm" && options.transport != "inproc";
  options.algorithms = algorithms_asked(options, world, by_messages);
  // By messages, an all-reduce is the other two one after the other, each by a choice of its own.
  if (by_messages) std::erase(options.ops, "all_reduce");
  if (options.ops.empty()) throw UserError("over messages, compare reduce_scatter and all_gather");
  const auto measured_costs = load_costs(calibration_path_of(asked), options.transport);
  const CollectiveCosts costs = measured_costs.value_or(built_in_costs(options.transport));

  CollectivesResult result;
  result.ranks = options.ranks;
  result.transport = options.transport;
  const bool tell = !options.json && !options.csv;
  if (tell) {
    std::printf("%d ranks over %s, costs %s; microseconds, measured (predicted)\n", options.ranks,
                options.transport.c_str(), measured_costs ? ("of " + calibration_path_of(asked)).c_str() : "built in");
    std::printf("%-15s %5s %10s", "op", "dtype", "bytes");
    for (const std::string& algorithm : options.algorithms) std::printf(" %23s", algorithm.c_str());
    std::printf("  %-12s %s\n", "auto", "over the best");
  }
  int near_best = 0, points = 0;
  std::uint64_t wrong = 0;
  for (const Case& one : measure(options)) {
    const CostedCall call = costed_call_of(one.first.op);
    const std::string automatic =
        by_messages ? cheapest_algorithm(call, one.first.bytes, world, costs) : std::string("direct");
    double best = 0, chosen = 0;
    if (tell) std::printf("%-15s %5s %10zu", one.first.op.c_str(), one.first.dtype.c_str(), one.first.bytes);
    for (const std::string& algorithm : options.algorithms) {
      const std::vector<double>& samples = one.us.at(algorithm);
      CollectivesRow row = one.first;
      row.algorithm = algorithm;
      row.median_us = median(samples);
      row.min_us = *std::min_element(samples.begin(), samples.end());
      row.max_us = *std::max_element(samples.begin(), samples.end());
      best = best == 0 ? row.median_us : std::min(best, row.median_us);
      if (algorithm == automatic) chosen = row.median_us;
      // Memory that is read where it stands takes no messages, which is all that is modelled.
      const bool modelled = by_messages || algorithm != "direct";
      if (tell && modelled)
        std::printf(" %10.1f (%10.1f)", row.median_us,
                    1e6 * predicted_seconds(call, algorithm, row.bytes, world, costs));
      else if (tell)
        std::printf(" %10.1f %12s", row.median_us, "");
      result.rows.push_back(std::move(row));
    }
    wrong += one.wrong;
    if (chosen > 0) {
      ++points;
      if (chosen <= 1.1 * best) ++near_best;
    }
    if (tell && chosen > 0) std::printf("  %-12s %+.0f %%\n", automatic.c_str(), 100 * (chosen / best - 1));
    if (tell && chosen == 0) std::printf("  %-12s not measured\n", automatic.c_str());
  }
  if (!tell) print_collectives(result, options);
  if (tell) std::printf("auto is within 10 %% of the best at %d of %d points\n", near_best, points);
  if (!options.plot.empty()) plot_collectives(result, options.plot);
  if (wrong > 0)
    std::fprintf(stderr, "%llu elements differ from a plain loop's\n", static_cast<unsigned long long>(wrong));
  return wrong > 0 ? 1 : 0;
}

}  // namespace bellows
