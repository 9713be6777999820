#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bellows/base/dtype.h"
#include "bellows/comm/bootstrap.h"
#include "bellows/comm/communicator.h"
#include "bellows/comm/costs.h"

// The parts of `bellows bench collectives`: what is asked for, what comes out, and who does which of it.

namespace bellows {

struct CollectivesOptions {
  std::vector<std::string> ops = {"reduce_scatter", "all_gather", "all_reduce"};
  std::vector<std::string> size_texts = {"4K", "64K", "1M", "16M", "64M"};
  std::vector<std::size_t> sizes;
  std::vector<std::string> dtypes = {"f32"};
  int ranks = 2;
  std::string transport = "shm";
  std::string algorithm = "auto";
  std::vector<std::string> algorithms;  ///< to compare with each other and with what is predicted; "all": that differ
  std::string calibration;              ///< file of costs; empty: the default place
  bool calibrate = false;
  std::string versus;
  int samples = 7;
  double sample_ms = 30;  ///< a sample repeats the call for about so long
  bool waiting = false;   ///< also measure what a rank that waits costs
  bool priority = false;  ///< also measure an urgent gather behind queued buckets
  bool json = false;
  bool csv = false;
  std::string plot;
  double crowding = 1;  ///< ranks per core, at least 1
};

struct CollectivesRow {
  std::string op;
  std::string algorithm = "auto";  ///< that was asked for
  std::string dtype = "f32";
  std::size_t bytes = 0;
  double median_us = 0, min_us = 0, max_us = 0;
  double limit_us = 0;      ///< what the memory allows
  std::uint64_t wrong = 0;  ///< elements that differ from a plain loop's, over all ranks
  std::optional<double> mpi_us;
  std::string mpi_settings;
  NLOHMANN_DEFINE_TYPE_INTRUSIVE(CollectivesRow, op, algorithm, dtype, bytes, median_us, min_us, max_us, limit_us,
                                 wrong)
};

/// Of a rank that waits a second for a late peer.
struct WaitingFigure {
  double cpu_percent = 0;
  NLOHMANN_DEFINE_TYPE_INTRUSIVE(WaitingFigure, cpu_percent)
};

/// An urgent 1 MiB gather, with nothing else to do and behind 256 MiB of buckets that are being reduced. Caches are in
/// both cases filled with something else before.
struct PriorityFigure {
  double idle_us = 0, queued_us = 0;
  double buckets_us = 0;  ///< until the buckets were through
  NLOHMANN_DEFINE_TYPE_INTRUSIVE(PriorityFigure, idle_us, queued_us, buckets_us)
};

struct CollectivesResult {
  int ranks = 0;
  std::string transport;
  std::vector<CollectivesRow> rows;
  std::vector<WaitingFigure> waiting;    ///< one or none
  std::vector<PriorityFigure> priority;  ///< one or none
  NLOHMANN_DEFINE_TYPE_INTRUSIVE(CollectivesResult, ranks, transport, rows, waiting, priority)
};

/// A communicator and the algorithm that it was made for.
struct BenchedComm {
  std::unique_ptr<Communicator> comm;
  std::string algorithm;
};
/// One rank's part: collective, the same result on every rank. All communicators work on the same memory, and take
/// turns sample by sample: what disturbs one disturbs all.
CollectivesResult measure_collectives(const std::vector<BenchedComm>& comms, const CollectivesOptions& options);

/// How long the memory needs for the bytes that one call moves on this rank, whoever else is at work: a plain
/// vectorised loop over buffers of the same sizes. `streaming`: its stores go past the caches (nothing is done if they
/// cannot). Returns false if so.
bool run_limit(const std::string& op, std::byte* output, const std::byte* input, std::size_t bytes, std::size_t ranks,
               bool streaming);

/// Starts the ranks (threads for inproc, else processes) and returns what they measured.
CollectivesResult run_collectives_ranks(const CollectivesOptions& options);
/// True in a process that `bellows run`, mpirun or the like started as one of several ranks.
bool started_as_rank();
/// As such a rank. Nothing unless this is rank 0.
std::optional<CollectivesResult> run_collectives_as_rank(CollectivesOptions& options);

/// Measures Open MPI as well, in turns, at the best of its settings for each row.
CollectivesResult measure_with_mpi(const CollectivesOptions& options);

/// Measures what messages cost over the transport, writes the calibration file and prints it.
int calibrate_collectives(const CollectivesOptions& options);
/// Algorithms in turns, beside what is predicted for them, and how far the one that "auto" takes is from the best.
int sweep_algorithms(const CollectivesOptions& options);

/// Processors that this process may use.
int allowed_core_count();
/// `ranks` ranks of this host, bound if there is a core for each.
CostedWorld costed_world_of(int ranks);
CostedCall costed_call_of(const std::string& op);
/// The file asked for, or the default one.
std::string calibration_path_of(const CollectivesOptions& options);

void print_collectives(const CollectivesResult& result, const CollectivesOptions& options);
/// Bus bandwidth over size as an SVG document, Open MPI's beside it where it was measured.
std::string draw_collectives(const CollectivesResult& result);
/// Writes that picture to a file. Throws UserError.
void plot_collectives(const CollectivesResult& result, const std::string& path);
/// Bus bandwidth over algorithm bandwidth, as nccl-tests count it.
double busbw_factor(const std::string& op, int ranks);

}  // namespace bellows
