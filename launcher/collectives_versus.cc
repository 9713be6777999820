#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "bellows/base/error.h"
#include "collectives_bench.h"

namespace bellows {
namespace {

/// Settings under which Open MPI is tried; the best per call counts. The default choice is one of them.
std::vector<std::pair<std::string, std::string>> mpi_settings() {
  std::vector<std::pair<std::string, std::string>> settings = {{"default", ""}};
  for (int a = 1; a <= 6; ++a) {
    const std::string n = std::to_string(a);
    std::string flags = " --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_allgather_algorithm " + n +
                        " --mca coll_tuned_allreduce_algorithm " + n;
    if (a <= 4)
      flags +=
          " --mca coll_tuned_reduce_scatter_block_algorithm " + n + " --mca coll_tuned_reduce_scatter_algorithm " + n;
    settings.emplace_back("algorithm " + n, flags);
  }
  return settings;
}

std::filesystem::path mpi_peer() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "bellows-mpi-peer";
}

/// One start of mpirun: calls `take(row, microseconds)` for each row that was measured.
template <class Take>
void run_mpi(const CollectivesOptions& options, const std::string& flags, const std::vector<CollectivesRow*>& rows,
             int samples, const Take& take) {
  std::string pairs;
  for (const CollectivesRow* row : rows)
    pairs += (pairs.empty() ? "" : ",") + row->op + ":" + std::to_string(row->bytes);
  // Memory that the allocator keeps and backs with huge pages: without it every call faults its buffers in anew.
  const std::string command =
      "GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184:"
      "glibc.malloc.top_pad=67108864 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 120 mpirun "
      "--oversubscribe " +
      std::string(allowed_core_count() < options.ranks ? "--bind-to none --mca mpi_yield_when_idle 1"
                                                       : "--bind-to core") +
      " -n " + std::to_string(options.ranks) + flags + " " + mpi_peer().string() + " " + pairs + " " +
      std::to_string(samples) + " " + std::to_string(options.sample_ms) + " 2>/dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) throw std::runtime_error("cannot start mpirun");
  char op[64];
  unsigned long long bytes;
  double us;
  while (std::fscanf(pipe, "%63s %llu %lf", op, &bytes, &us) == 3)
    for (CollectivesRow* row : rows)
      if (row->op == op && row->bytes == bytes) take(*row, us);
  pclose(pipe);  // an algorithm that does not exist for these ranks ends with an error, and does not count
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

// First the best settings for every row; then both sides in turn, so that a disturbance of the machine hits both alike.
CollectivesResult measure_with_mpi(const CollectivesOptions& options) {
  if (!std::filesystem::exists(mpi_peer()))
    throw UserError("--versus mpi needs " + mpi_peer().string() +
                    ", which is built where MPI is found (libopenmpi-dev)");
  if (options.dtypes != std::vector<std::string>{"f32"}) throw UserError("--versus mpi compares float32 only");
  std::vector<CollectivesRow> rows;
  for (const std::string& op : options.ops)
    for (const std::size_t bytes : options.sizes) {
      rows.emplace_back();
      rows.back().op = op;
      rows.back().bytes = bytes;
    }
  std::vector<CollectivesRow*> all;
  for (CollectivesRow& row : rows) all.push_back(&row);
  const auto settings = mpi_settings();
  for (const auto& [name, flags] : settings)
    run_mpi(options, flags, all, 3, [&, &name = name](CollectivesRow& row, double us) {
      if (!row.mpi_us || us < *row.mpi_us) row.mpi_us = us, row.mpi_settings = name;
    });
  for (const CollectivesRow& row : rows)
    if (!row.mpi_us) throw UserError("mpirun gave no result; is Open MPI installed (openmpi-bin)?");

  constexpr int kRounds = 3;
  std::vector<std::vector<double>> theirs(rows.size());
  std::vector<std::vector<CollectivesRow>> ours(rows.size());
  CollectivesResult result;
  for (int round = 0; round < kRounds; ++round) {
    CollectivesResult now = run_collectives_ranks(options);
    for (std::size_t i = 0; i < rows.size(); ++i) ours[i].push_back(now.rows[i]);
    result = std::move(now);
    for (const auto& [name, flags] : settings) {
      std::vector<CollectivesRow*> best;
      for (CollectivesRow& row : rows)
        if (row.mpi_settings == name) best.push_back(&row);
      if (!best.empty())
        run_mpi(options, flags, best, options.samples, [&](CollectivesRow& row, double us) {
          theirs[static_cast<std::size_t>(&row - rows.data())].push_back(us);
        });
    }
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CollectivesRow& row = rows[i];
    const auto middle = [&](double CollectivesRow::*field) {
      std::vector<double> values;
      for (const CollectivesRow& one : ours[i]) values.push_back(one.*field);
      return median(values);
    };
    row.median_us = middle(&CollectivesRow::median_us);
    row.limit_us = middle(&CollectivesRow::limit_us);
    row.min_us = row.median_us;
    for (const CollectivesRow& one : ours[i]) {
      row.min_us = std::min(row.min_us, one.min_us);
      row.max_us = std::max(row.max_us, one.max_us);
      row.wrong += one.wrong;
    }
    if (!theirs[i].empty()) row.mpi_us = median(theirs[i]);
  }
  result.rows = std::move(rows);
  return result;
}

}  // namespace bellows
