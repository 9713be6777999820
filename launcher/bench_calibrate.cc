#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>

#include "bellows/base/error.h"
#include "bellows/base/memory.h"
#include "bellows/comm/costs.h"
#include "collectives_bench.h"

namespace bellows {
namespace {

constexpr std::size_t kSmall = std::size_t{4} << 10, kLarge = std::size_t{16} << 20;

CostedCall call_of(const std::string& op) {
  return op == "reduce_scatter" ? CostedCall::kReduceScatter
         : op == "all_gather"   ? CostedCall::kAllGather
                                : CostedCall::kAllReduce;
}

std::string path_of(const CollectivesOptions& options) {
  return options.calibration.empty() ? default_calibration_path() : options.calibration;
}

// The ranks of this benchmark are on one host, and bound if there is a core for each.
CostedWorld world_of(int ranks) {
  return {std::vector<int>(ranks, 0), std::max(1.0, static_cast<double>(ranks) / allowed_core_count())};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double& find(std::map<std::pair<std::string, std::size_t>, double>& figures, const char* op, std::size_t bytes) {
  return figures.at({op, bytes});
}

/// The value of `figure` with which the model predicts what was measured; 0 if it predicts more even then.
void fit(double& figure, const std::function<double()>& predicted, double measured) {
  double low = 0, high = 1e-9;
  figure = 0;
  if (predicted() >= measured) return;
  for (figure = high; predicted() < measured && high < 1; figure = high) high *= 2;
  for (int i = 0; i < 60; ++i) {
    figure = (low + high) / 2;
    (predicted() < measured ? low : high) = figure;
  }
}

void print_link(const char* name, const LinkCosts& link) {
  std::printf("  %-22s %8.2f us a message, %7.3f ns a KiB received, %7.3f ns a KiB added up\n", name,
              link.message_s * 1e6, link.byte_s * 1024e9, link.added_byte_s * 1024e9);
}

}  // namespace

// Two ranks exchange one message each way, whatever the algorithm: a small gather shows what a message costs, a large
// one its bytes, a large reduction those that are added up where they stand. The plain loops of the benchmark show
// adding and copying, ranks without a core each what it takes to be woken. A ring, because "direct" has no messages in
// shared memory.
int calibrate_collectives(const CollectivesOptions& asked) {
  if (asked.transport == "inproc" || asked.transport == "auto")
    throw UserError("--calibrate measures messages: name a transport of processes, such as ucx or shm+ucx");
  CollectivesOptions options = asked;
  options.ops = {"all_gather", "reduce_scatter"};
  options.sizes = {kSmall, kLarge};
  options.dtypes = {"f32"};
  options.algorithm = "ring";
  options.waiting = options.priority = false;
  options.ranks = 2;
  options.crowding = 1;
  std::map<std::pair<std::string, std::size_t>, std::vector<double>> samples, limits;
  for (int round = 0; round < 3; ++round)
    for (const CollectivesRow& row : run_collectives_ranks(options).rows) {
      samples[{row.op, row.bytes}].push_back(row.median_us * 1e-6);
      limits[{row.op, row.bytes}].push_back(row.limit_us * 1e-6);
    }
  std::map<std::pair<std::string, std::size_t>, double> measured, limit;
  for (auto& [key, values] : samples) measured[key] = median(values);
  for (auto& [key, values] : limits) limit[key] = median(values);

  if (find(measured, "all_gather", kLarge) < 2 * find(measured, "all_gather", kSmall))
    throw UserError(
        "16 MiB take hardly longer than 4 KiB: the ranks wait for something else (a busy host, or a real-time "
        "priority that keeps the network from running); nothing was stored");

  CollectiveCosts costs = built_in_costs(options.transport);
  costs.add_s = find(limit, "reduce_scatter", kLarge) / kLarge;
  costs.copy_s = find(limit, "all_gather", kLarge) / (kLarge / 2);
  costs.wake_s = 0;
  const CostedWorld two = world_of(2);
  const auto predicted = [&](CostedCall call, std::size_t bytes) {
    return [&, call, bytes] { return predicted_seconds(call, "ring", bytes, two, costs); };
  };
  for (int turn = 0; turn < 5; ++turn) {  // each depends a little on the others
    fit(costs.near.message_s, predicted(CostedCall::kAllGather, kSmall), find(measured, "all_gather", kSmall));
    fit(costs.near.byte_s, predicted(CostedCall::kAllGather, kLarge), find(measured, "all_gather", kLarge));
    fit(costs.near.added_byte_s, predicted(CostedCall::kReduceScatter, kLarge),
        find(measured, "reduce_scatter", kLarge));
    if (costs.near.added_byte_s == 0)
      fit(costs.add_s, predicted(CostedCall::kReduceScatter, kLarge), find(measured, "reduce_scatter", kLarge));
  }
  // Several hosts are out of reach of one: their link keeps its built-in figures where the transport has one of its
  // own.
  const bool one_wire = options.transport != "shm+ucx";
  if (one_wire) costs.far = costs.near;

  if (costs.near.message_s == 0 || costs.near.byte_s == 0 || costs.add_s == 0)
    throw UserError("the figures do not fit together (a busy host?): nothing was stored; try again when it is quiet");

  options.ranks = 2 * allowed_core_count();
  options.crowding = 2;
  options.sizes = {kSmall};
  std::vector<double> crowded;
  for (int round = 0; round < 3; ++round) crowded.push_back(run_collectives_ranks(options).rows[0].median_us * 1e-6);
  const CostedWorld many = world_of(options.ranks);
  fit(
      costs.wake_s, [&] { return predicted_seconds(CostedCall::kAllGather, "ring", kSmall, many, costs); },
      median(crowded));

  const std::string path = path_of(asked);
  store_costs(path, asked.transport, costs);
  std::printf("costs of collectives over %s:\n", asked.transport.c_str());
  print_link("inside a host", costs.near);
  print_link(one_wire ? "between hosts" : "between hosts (guess)", costs.far);
  std::printf("  adding %.3f ns and packing %.3f ns a KiB; %.2f us until a rank without a core of its own has one\n",
              costs.add_s * 1024e9, costs.copy_s * 1024e9, costs.wake_s * 1e6);
  std::printf("stored in %s\n", path.c_str());
  return 0;
}

int sweep_algorithms(const CollectivesOptions& asked) {
  CollectivesOptions options = asked;
  options.waiting = options.priority = false;
  const CostedWorld world = world_of(options.ranks);
  std::vector<std::string> algorithms;
  for (const std::string& name : fitting_algorithms(world))
    if (asked.algorithms.front() == "all" ||
        std::find(asked.algorithms.begin(), asked.algorithms.end(), name) != asked.algorithms.end())
      algorithms.push_back(name);
  if (algorithms.empty())
    throw UserError("none of these algorithms can serve " + std::to_string(options.ranks) + " ranks");
  const auto measured_costs = load_costs(path_of(asked), options.transport);
  const CollectiveCosts costs = measured_costs.value_or(built_in_costs(options.transport));
  const bool by_messages = options.transport != "shm" && options.transport != "inproc";
  // By messages, an all-reduce is the other two one after the other, each by a choice of its own.
  if (by_messages) std::erase(options.ops, "all_reduce");
  if (options.ops.empty()) throw UserError("over messages, compare reduce_scatter and all_gather");

  std::map<std::string, std::vector<std::vector<double>>> rounds;  // algorithm -> by row, by round
  std::vector<CollectivesRow> rows;
  std::uint64_t wrong = 0;
  for (int round = 0; round < 5; ++round)
    for (const std::string& algorithm : algorithms) {
      options.algorithm = algorithm;
      rows = run_collectives_ranks(options).rows;
      rounds[algorithm].resize(rows.size());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        rounds[algorithm][i].push_back(rows[i].median_us);
        wrong += rows[i].wrong;
      }
    }

  std::printf("%d ranks over %s, costs %s; microseconds, measured (predicted)\n", options.ranks,
              options.transport.c_str(), measured_costs ? ("of " + path_of(asked)).c_str() : "built in");
  std::printf("%-15s %5s %10s", "op", "dtype", "bytes");
  for (const std::string& algorithm : algorithms) std::printf(" %23s", algorithm.c_str());
  std::printf("  %-12s %s\n", "auto", "over the best");
  int near_best = 0, points = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const CostedCall call = call_of(rows[i].op);
    std::printf("%-15s %5s %10zu", rows[i].op.c_str(), rows[i].dtype.c_str(), rows[i].bytes);
    double best = 0, chosen = 0;
    const std::string automatic =
        by_messages ? cheapest_algorithm(call, rows[i].bytes, world, costs) : std::string("direct");
    for (const std::string& algorithm : algorithms) {
      const double us = median(rounds[algorithm][i]);
      best = best == 0 ? us : std::min(best, us);
      if (algorithm == automatic) chosen = us;
      std::printf(" %10.1f (%10.1f)", us, 1e6 * predicted_seconds(call, algorithm, rows[i].bytes, world, costs));
    }
    if (chosen > 0) {
      std::printf("  %-12s %+.0f %%\n", automatic.c_str(), 100 * (chosen / best - 1));
      ++points;
      if (chosen <= 1.1 * best) ++near_best;
    } else {
      std::printf("  %-12s not measured\n", automatic.c_str());
    }
  }
  std::printf("auto is within 10 %% of the best at %d of %d points\n", near_best, points);
  if (wrong > 0) std::printf("%llu elements differ from a plain loop's\n", static_cast<unsigned long long>(wrong));
  return wrong > 0 ? 1 : 0;
}

}  // namespace bellows
