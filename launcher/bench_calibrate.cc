#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "bellows/base/error.h"
#include "bellows/comm/costs.h"
#include "collectives_bench.h"

namespace bellows {
namespace {

constexpr std::size_t kSmall = std::size_t{4} << 10, kLarge = std::size_t{16} << 20;

/// A call that was measured among ranks of this host.
struct Point {
  CostedCall call = CostedCall::kAllGather;
  std::string algorithm;
  CostedWorld world;
  std::size_t bytes = 0;
  double seconds = 0;
};

/// ln of how far the prediction is from what was measured.
double error_of(const Point& point, const CollectiveCosts& costs) {
  return std::log(predicted_seconds(point.call, point.algorithm, point.bytes, point.world, costs) / point.seconds);
}
double squares(const std::vector<Point>& points, const CollectiveCosts& costs) {
  double sum = 0;
  for (const Point& point : points) {
    const double error = error_of(point, costs);
    sum += error * error;
  }
  return sum;
}

/// The figures with which the model comes nearest to all that was measured: one figure at a time goes up or down by
/// a factor as long as that helps, the factor becomes finer when nothing does.
void fit(CollectiveCosts& costs, const std::vector<Point>& points) {
  const std::vector<double*> figures = {&costs.near.message_s,    &costs.near.delay_s, &costs.near.byte_s,
                                        &costs.near.added_byte_s, &costs.wake_s,       &costs.beyond_cache};
  double least = squares(points, costs);
  for (double factor = 4; factor > 1.01;) {
    bool better = false;
    for (double* const figure : figures)
      for (const double by : {factor, 1 / factor}) {
        const double before = *figure;
        *figure *= by;
        if (const double now = squares(points, costs); now < least * (1 - 1e-9)) {
          least = now, better = true;
          break;
        }
        *figure = before;
      }
    if (!better) factor = std::sqrt(factor);
  }
}

void print_link(const char* name, const LinkCosts& link) {
  std::printf("  %-22s %8.2f us to handle a message, %.2f us on its way, %.1f ns a KiB received, %.1f ns added up\n",
              name, link.message_s * 1e6, link.delay_s * 1e6, link.byte_s * 1024e9, link.added_byte_s * 1024e9);
}

/// Worlds of 2, 4 and so on up to 8 ranks, or as many as there are cores.
std::vector<int> calibrated_worlds() {
  std::vector<int> worlds;
  for (int ranks = 2; ranks <= std::min(64, std::max(8, allowed_core_count())); ranks *= 2) worlds.push_back(ranks);
  return worlds;
}

}  // namespace

// Gathers and reductions of four sizes among 2, 4, 8 ... ranks, by all algorithms; adding and copying by the plain
// loops of the benchmark. The model's figures are fitted to all of that together; by how much they still miss each
// call is stored too.
int calibrate_collectives(const CollectivesOptions& asked) {
  if (asked.transport == "inproc" || asked.transport == "auto")
    throw UserError("--calibrate measures messages: name a transport of processes, such as ucx or shm+ucx");
  CollectivesOptions options = asked;
  options.ops = {"all_gather", "reduce_scatter"};
  options.sizes = {kSmall, 16 * kSmall, kLarge / 16, kLarge};
  options.dtypes = {"f32"};
  options.waiting = options.priority = false;

  CollectiveCosts costs = built_in_costs(options.transport);
  std::vector<Point> points;
  double small = 0, large = 0;
  for (const int ranks : calibrated_worlds()) {
    std::fprintf(stderr, "\r%d ranks over %s ...", ranks, options.transport.c_str());
    options.ranks = ranks;
    const CostedWorld world = costed_world_of(ranks);
    options.crowding = world.ranks_per_core;
    options.algorithms = fitting_algorithms(world, true);
    // Memory that ranks lend each other is read where it stands if "direct" is asked for, without any message.
    const bool lends = options.transport == "shm" || options.transport == "shm+ucx";
    if (lends) options.algorithms.front() = "hierarchical";
    for (const CollectivesRow& row : run_collectives_ranks(options).rows) {
      points.push_back({costed_call_of(row.op), lends && row.algorithm == "hierarchical" ? "direct" : row.algorithm,
                        world, row.bytes, row.median_us * 1e-6});
      if (ranks != 2) continue;
      const double limit = row.limit_us * 1e-6;
      if (row.bytes == kLarge && row.op == "reduce_scatter") costs.add_s = limit / kLarge;
      if (row.bytes == kLarge && row.op == "all_gather") costs.copy_s = limit / (kLarge / 2);
      if (row.op == "all_gather") (row.bytes == kSmall ? small : large) = row.median_us;
    }
  }
  std::fprintf(stderr, "\r%40s\r", "");
  if (large < 2 * small)
    throw UserError(
        "16 MiB take hardly longer than 4 KiB: the ranks wait for something else (a busy host, or a real-time "
        "priority that keeps the network from running); nothing was stored");

  costs.near.delay_s = costs.near.message_s;
  fit(costs, points);
  // Several hosts are out of reach of one: their link keeps its built-in figures where the transport has one of its
  // own.
  const bool one_wire = options.transport != "shm+ucx";
  if (one_wire) costs.far = costs.near;
  const double off = std::exp(std::sqrt(squares(points, costs) / static_cast<double>(points.size())));
  std::vector<ModelError> errors;
  for (const Point& point : points)
    errors.push_back({point.call, point.algorithm, static_cast<int>(point.world.host.size()), point.bytes,
                      std::exp(-error_of(point, costs))});
  costs.errors = std::move(errors);

  const std::string path = calibration_path_of(asked);
  store_costs(path, asked.transport, costs);
  std::printf("costs of collectives over %s:\n", asked.transport.c_str());
  print_link("inside a host", costs.near);
  print_link(one_wire ? "between hosts" : "between hosts (guess)", costs.far);
  std::printf("  adding %.1f ns and packing %.1f ns a KiB; %.2f us until a rank without a core of its own has one\n",
              costs.add_s * 1024e9, costs.copy_s * 1024e9, costs.wake_s * 1e6);
  std::printf("  bytes of 16 MiB cost %.2f times those of 1 MiB\n", costs.beyond_cache);
  std::printf("  %zu calls measured; these figures alone miss them by a factor of %.2f, which is corrected\n",
              points.size(), off);
  std::printf("stored in %s\n", path.c_str());
  return 0;
}

}  // namespace bellows
