// Open MPI's side of `bellows bench collectives --versus mpi`: the same calls, sizes and way of taking the time.
// Usage: bellows-mpi-peer OP:BYTES,OP:BYTES,... SAMPLES SAMPLE_MS. Rank 0 prints one line each: op bytes median_us.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Pair {
  std::string op;
  std::size_t bytes = 0;
};

std::vector<Pair> parse(const char* text) {
  std::vector<Pair> pairs;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    const std::size_t colon = word.find(':');
    pairs.push_back({word.substr(0, colon), std::stoull(word.substr(colon + 1))});
  }
  return pairs;
}

/// Microseconds per call: of the slowest rank, over `repeats` calls one after another.
template <class Call>
double sample(int repeats, const Call& call) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double began = MPI_Wtime();
  for (int i = 0; i < repeats; ++i) call();
  double mine = (MPI_Wtime() - began) / repeats * 1e6, slowest = 0;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

template <class Call>
double median(int samples, double sample_ms, const Call& call) {
  sample(1, call);
  const double us = std::min(sample(1, call), sample(2, call));
  const int repeats = static_cast<int>(std::clamp(sample_ms * 1e3 / std::max(us, 0.1), 1.0, 10'000.0));
  std::vector<double> times;
  for (int s = 0; s < samples; ++s) times.push_back(sample(repeats, call));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const std::vector<Pair> pairs = parse(argv[1]);
  const int samples = std::atoi(argv[2]);
  const double sample_ms = std::atof(argv[3]);
  std::size_t largest = 0;
  for (const Pair& pair : pairs) largest = std::max(largest, pair.bytes);
  std::vector<float> input(largest / sizeof(float), 1.0f), output(largest / sizeof(float), 0.0f);
  for (const auto& [op, bytes] : pairs) {
    const std::size_t count = bytes / sizeof(float), chunk = count / static_cast<std::size_t>(ranks);
    const int whole = static_cast<int>(count), part = static_cast<int>(chunk);
    double us = 0;
    if (op == "reduce_scatter") {
      const std::vector<int> parts(static_cast<std::size_t>(ranks), part);
      us = median(samples, sample_ms, [&] {
        MPI_Reduce_scatter_block(input.data(), output.data(), part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      });
      us = std::min(us, median(samples, sample_ms, [&] {
                      MPI_Reduce_scatter(input.data(), output.data(), parts.data(), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
                    }));
    } else if (op == "all_gather") {
      us = median(samples, sample_ms,
                  [&] { MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, output.data(), part, MPI_FLOAT, MPI_COMM_WORLD); });
    } else {
      us = median(samples, sample_ms,
                  [&] { MPI_Allreduce(input.data(), output.data(), whole, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
    }
    if (rank == 0) {
      std::printf("%s %zu %.3f\n", op.c_str(), bytes, us);
      std::fflush(stdout);
    }
  }
  MPI_Finalize();
  return 0;
}
