#include "bench_collectives.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>

#include "bellows/base/error.h"
#include "bellows/elastic/session.h"
#include "collectives_bench.h"

namespace bellows {
namespace {

// "64K", "1M", "2G" or plain bytes; whole elements of any type.
std::size_t parse_size(const std::string& text) {
  std::size_t used = 0;
  unsigned long long value = 0;
  try {
    value = std::stoull(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  const std::string unit = text.substr(used);
  const std::map<std::string, int> shifts = {{"", 0}, {"K", 10}, {"M", 20}, {"G", 30}};
  const auto it = shifts.find(unit);
  if (used == 0 || it == shifts.end() || value == 0 || (value << it->second) % sizeof(float) != 0)
    throw UserError("'" + text + "' is not a size; give a multiple of 4 bytes such as 4096, 64K, 16M or 1G");
  return static_cast<std::size_t>(value) << it->second;
}

int run_benchmark(CollectivesOptions& options) {
  options.crowding = std::max(1.0, static_cast<double>(options.ranks) / allowed_core_count());
  for (const std::string& text : options.size_texts) options.sizes.push_back(parse_size(text));
  CollectivesResult result;
  if (options.calibrate || !options.algorithms.empty()) {
    if (started_as_rank()) throw UserError("--calibrate and --algorithms start ranks: run them without a launcher");
    if (options.transport == "auto") options.transport = "shm";
    return options.calibrate ? calibrate_collectives(options) : sweep_algorithms(options);
  }
  if (started_as_rank()) {
    if (!options.versus.empty()) throw UserError("--versus starts both sides itself: run it without a launcher");
    const auto mine = run_collectives_as_rank(options);
    if (!mine) return 0;  // rank 0 tells
    result = *mine;
  } else {
    if (options.transport == "auto") options.transport = "shm";
    result = options.versus == "mpi" ? measure_with_mpi(options) : run_collectives_ranks(options);
  }
  print_collectives(result, options);
  if (!options.plot.empty()) plot_collectives(result, options.plot);
  for (const CollectivesRow& row : result.rows)
    if (row.wrong > 0) return 1;
  return 0;
}

}  // namespace

int bench_collectives_main(int argc, char** argv) {
  CollectivesOptions options;
  std::vector<std::string> names = {"auto"};
  // Those between GPUs move device windows; this benchmark's are in host memory (scripts/gpu-check.sh measures the
  // others).
  for (const TransportInfo& info : transports())
    if (info.name != "nccl" && info.name != "cuda-ipc") names.push_back(info.name);
  CLI::App app(
      "Measure collectives on windows (zero-copy), between ranks that it starts on this host, or, started by bellows "
      "run "
      "or mpirun, between those");
  app.add_option("--ops", options.ops, "calls to measure")
      ->delimiter(',')
      ->check(CLI::IsMember({"reduce_scatter", "all_gather", "all_reduce"}))
      ->capture_default_str();
  app.add_option("--sizes", options.size_texts, "bytes of the whole vector")->delimiter(',')->capture_default_str();
  app.add_option("--dtype", options.dtypes, "types of elements")
      ->delimiter(',')
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->capture_default_str();
  app.add_option("--ranks", options.ranks, "ranks to start")->check(CLI::Range(1, 256))->capture_default_str();
  app.add_option("--transport", options.transport, "transport")->check(CLI::IsMember(names))->capture_default_str();
  app.add_option("--algorithm", options.algorithm, "algorithm")->capture_default_str();
  auto* calibrate = app.add_flag("--calibrate", options.calibrate, "measure and store what messages cost here");
  app.add_option("--algorithms", options.algorithms, "compare these (or all) with what is predicted for them")
      ->delimiter(',')
      ->check(CLI::IsMember({"all", "direct", "ring", "halving", "hierarchical"}))
      ->excludes(calibrate);
  app.add_option("--calibration", options.calibration, "file of measured costs")
      ->default_str("that of the user's cache folder");
  app.add_option("--versus", options.versus, "compare with Open MPI at its best")->check(CLI::IsMember({"mpi"}));
  app.add_flag("--waiting", options.waiting, "also: what a rank costs that waits for a late peer");
  app.add_flag("--priority", options.priority, "also: an urgent gather behind buckets that are being reduced");
  app.add_option("--samples", options.samples, "samples per median")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--sample-ms", options.sample_ms, "length of a sample in milliseconds")
      ->check(CLI::Range(0.01, 60'000.0))
      ->capture_default_str();
  auto* json = app.add_flag("--json", options.json, "print JSON");
  app.add_flag("--csv", options.csv, "print CSV")->excludes(json);
  app.add_option("--plot", options.plot, "also draw bus bandwidth over size into this SVG file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return run_main([&] { return run_benchmark(options); });
}

}  // namespace bellows
