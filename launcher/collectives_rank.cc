#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "bellows/base/clock.h"
#include "bellows/base/error.h"
#include "bellows/base/memory.h"
#include "collectives_bench.h"

namespace bellows {
namespace {

Nanos clock_ns(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return Nanos{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}
Nanos thread_cpu_ns() { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }
Nanos process_cpu_ns() { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// ---- What a plain loop makes of it ----

/// What rank `rank` brings at element `i`: of mixed size, so that another order of additions shows in the bits.
float brought(int rank, std::size_t i) {
  const std::uint32_t x =
      static_cast<std::uint32_t>(i * 2654435761u) ^ (static_cast<std::uint32_t>(rank) * 40503u + 77u);
  return static_cast<float>(static_cast<int>(x >> 8 & 0xffff) - 0x8000) * (x & 1 ? 1.0f : 0x1p-9f);
}

/// The lane tree over all ranks, rank r being lane r: neighbours of equal size are added, the rest from the right.
template <class T>
T tree_sum(int ranks, std::size_t i) {
  T values[16];
  int counts[16], top = 0;
  const auto join = [&] {
    --top;
    values[top - 1] = T(static_cast<float>(values[top - 1]) + static_cast<float>(values[top]));
    counts[top - 1] += counts[top];
  };
  for (int r = 0; r < ranks; ++r) {
    values[top] = T(brought(r, i));
    counts[top++] = 1;
    while (top > 1 && counts[top - 1] == counts[top - 2]) join();
  }
  while (top > 1) join();
  return values[0];
}

// ---- One rank ----

class BenchRank {
 public:
  BenchRank(const std::vector<BenchedComm>& comms, const CollectivesOptions& options)
      : comm_(*comms.front().comm),
        options_(options),
        rank_(comm_.world().rank),
        n_(comm_.world().world_size),
        largest_(*std::max_element(options.sizes.begin(), options.sizes.end())),
        input_(largest_),
        output_(largest_) {
    for (const BenchedComm& one : comms)
      lines_.push_back({one.comm.get(), one.comm->expose(input_, 0, largest_), one.comm->expose(output_, 0, largest_),
                        one.algorithm});
  }

  CollectivesResult measure() {
    CollectivesResult result;
    result.ranks = n_;
    result.transport = comm_.transport();
    for (const std::string& dtype : options_.dtypes) {
      dtype_ = dtype == "bf16" ? DType::kBF16 : dtype == "f16" ? DType::kF16 : DType::kF32;
      for (const std::string& op : options_.ops)
        for (const std::size_t bytes : options_.sizes) measure(op, bytes, result.rows);
    }
    if (options_.waiting) result.waiting.push_back({waiting()});
    if (options_.priority) result.priority.push_back(priority());
    return result;
  }

 private:
  /// A communicator to be measured, and the memory as its peers know it.
  struct Line {
    Communicator* comm;
    Window in, out;
    std::string algorithm;
  };

  /// A row of each communicator.
  void measure(const std::string& op, std::size_t bytes, std::vector<CollectivesRow>& rows) {
    const std::size_t count = bytes / size_of(dtype_), lines = lines_.size();
    const auto call = [&](const Line& line) { return [&, count] { run(line, op, count); }; };
    const auto limit = [&](bool streaming) {
      return [&, streaming] {
        run_limit(op, output_.data(), input_.data(), bytes, static_cast<std::size_t>(n_), streaming);
      };
    };
    std::vector<std::uint64_t> wrong;
    std::vector<int> repeats;
    for (const Line& line : lines_) {
      wrong.push_back(check(line, op, count));
      repeats.push_back(repeats_for(call(line)));
    }
    const bool streams = run_limit(op, output_.data(), input_.data(), bytes, static_cast<std::size_t>(n_), true);
    const int plain = repeats_for(limit(false));
    // In turns, so that a disturbance of the machine hits all of them. The loops are given their own processor time: on
    // a busy host they are preempted like anything else, and would look slower than they are.
    std::vector<std::vector<double>> ours(lines);
    std::vector<double> cached, streamed;
    for (int s = 0; s < options_.samples; ++s) {
      for (std::size_t i = 0; i < lines; ++i) ours[i].push_back(sample(repeats[i], call(lines_[i])));
      cached.push_back(sample(plain, limit(false), thread_cpu_ns));
      if (streams) streamed.push_back(sample(plain, limit(true), thread_cpu_ns));
    }
    for (std::size_t i = 0; i < lines; ++i) {
      CollectivesRow row;
      row.op = op;
      row.algorithm = lines_[i].algorithm;
      row.dtype = std::string(name_of(dtype_));
      row.bytes = bytes;
      row.wrong = wrong[i];
      std::sort(ours[i].begin(), ours[i].end());
      row.median_us = ours[i][ours[i].size() / 2];
      row.min_us = ours[i].front();
      row.max_us = ours[i].back();
      row.limit_us = options_.crowding * (streams ? std::min(median(cached), median(streamed)) : median(cached));
      rows.push_back(std::move(row));
    }
  }

  // ---- The calls ----

  Work start_reduce_scatter(Communicator& comm, Window window, std::size_t offset, std::size_t count, void* sums) {
    ReduceScatterArgs args;
    args.window = window;
    for (int r = 0; r < n_; ++r) {
      args.pieces.push_back({r, {r, 1}, offset});
      args.owned.push_back({r, even_chunk(count, n_, r)});
    }
    args.complete = true;
    args.dtype = dtype_;
    args.results = {{{0, n_}, sums}};
    return comm.reduce_scatter(std::move(args));
  }
  Work start_all_gather(Communicator& comm, Window window, std::size_t offset, std::size_t count, int priority) {
    AllGatherArgs args;
    args.window = window;
    args.offset = offset;
    args.dtype = dtype_;
    args.priority = priority;
    for (int r = 0; r < n_; ++r) args.owned.push_back({r, even_chunk(count, n_, r)});
    return comm.all_gather(std::move(args));
  }
  Work start_all_reduce(const Line& line, std::size_t count) {
    AllReduceArgs args;
    args.window = line.in;
    args.destination = line.out;
    args.sums = output_.data();
    args.dtype = dtype_;
    for (int r = 0; r < n_; ++r) {
      args.pieces.push_back({r, {r, 1}, 0});
      args.owned.push_back({r, even_chunk(count, n_, r)});
    }
    return line.comm->all_reduce(std::move(args));
  }
  void run(const Line& line, const std::string& op, std::size_t count) {
    if (op == "reduce_scatter") return start_reduce_scatter(*line.comm, line.in, 0, count, output_.data()).wait();
    if (op == "all_gather") return start_all_gather(*line.comm, line.out, 0, count, 0).wait();
    start_all_reduce(line, count).wait();
  }

  // ---- Against the plain loop ----

  std::uint64_t check(const Line& line, const std::string& op, std::size_t count) {
    switch (dtype_) {
      case DType::kBF16:
        return check_typed<bf16>(line, op, count);
      case DType::kF16:
        return check_typed<f16>(line, op, count);
      default:
        return check_typed<float>(line, op, count);
    }
  }
  template <class T>
  std::uint64_t check_typed(const Line& line, const std::string& op, std::size_t count) {
    const auto in = input_.as<T>(), out = output_.as<T>();
    const Interval own = even_chunk(count, n_, rank_);
    for (std::size_t i = 0; i < count; ++i) in[i] = T(brought(rank_, i));
    std::memset(output_.data(), 0xff, count * sizeof(T));
    if (op == "all_gather")
      for (std::size_t i = own.begin; i < own.end; ++i) out[i] = in[i];
    comm_.barrier();
    run(line, op, count);
    std::uint64_t wrong = 0;
    const auto compare = [&](std::size_t at, T expected) { wrong += std::memcmp(&out[at], &expected, sizeof(T)) != 0; };
    for (int r = 0; r < n_; ++r) {
      const Interval chunk = even_chunk(count, n_, r);
      for (std::size_t i = chunk.begin; i < chunk.end; ++i)
        if (op == "all_gather")
          compare(i, T(brought(r, i)));
        else if (op == "all_reduce")
          compare(i, tree_sum<T>(n_, i));
        else if (r == rank_)
          compare(i - chunk.begin, tree_sum<T>(n_, i));
    }
    return static_cast<std::uint64_t>(over_ranks(static_cast<double>(wrong), [](double a, double b) { return a + b; }));
  }

  // ---- Figures beside the table ----

  /// The processor time of ranks that wait a second for the last one, in percent of that second, of the busiest.
  double waiting() {
    comm_.barrier();
    if (rank_ == n_ - 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    const Nanos cpu = process_cpu_ns(), wall = now_ns();
    comm_.barrier();
    double percent = 100.0 * static_cast<double>(process_cpu_ns() - cpu) / static_cast<double>(now_ns() - wall);
    if (rank_ == n_ - 1) percent = 0;
    if (std::strcmp(comm_.transport(), "inproc") == 0) percent /= n_ - 1;  // all ranks are one process
    return over_ranks(percent, [](double a, double b) { return std::max(a, b); });
  }

  PriorityFigure priority() {
    constexpr std::size_t kGather = std::size_t{1} << 20, kBucket = std::size_t{16} << 20, kBuckets = 16;
    constexpr std::size_t kMemory = std::size_t{64} << 20, kTrials = 15;
    SharedMemory buckets(kMemory), gathered(kGather);
    HostMemory sums(kBucket), other(std::size_t{48} << 20);
    const Window from = comm_.expose(buckets, 0, kMemory), whole = comm_.expose(gathered, 0, kGather);
    const std::size_t count = kGather / size_of(dtype_);
    const auto slowest = [&](double us) { return over_ranks(us, [](double a, double b) { return std::max(a, b); }); };
    const auto prepare = [&] {
      for (std::byte& b : other.bytes()) b = std::byte(static_cast<unsigned char>(b) + 1);
      comm_.barrier();
    };
    const auto since = [](Nanos began) { return static_cast<double>(now_ns() - began) * 1e-3; };
    std::vector<double> idle, queued, through;
    for (std::size_t trial = 0; trial < kTrials; ++trial) {
      prepare();
      Nanos began = now_ns();
      start_all_gather(comm_, whole, 0, count, 1).wait();
      idle.push_back(slowest(since(began)));

      prepare();
      std::vector<Work> works;
      const Nanos first = now_ns();
      for (std::size_t b = 0; b < kBuckets; ++b)
        works.push_back(
            start_reduce_scatter(comm_, from, b * kBucket % kMemory, kBucket / size_of(dtype_), sums.data()));
      began = now_ns();
      start_all_gather(comm_, whole, 0, count, 1).wait();
      const double urgent = since(began);
      for (const Work& work : works) work.wait();
      through.push_back(slowest(since(first)));
      queued.push_back(slowest(urgent));
    }
    return {median(idle), median(queued), median(through)};
  }

  // ---- Time ----

  template <class Combine>
  double over_ranks(double mine, const Combine& combine) {
    double all = 0;
    bool first = true;
    for (const std::string& blob :
         comm_.all_gather_blobs(std::string(reinterpret_cast<const char*>(&mine), sizeof mine))) {
      double theirs;
      std::memcpy(&theirs, blob.data(), sizeof theirs);
      all = first ? theirs : combine(all, theirs);
      first = false;
    }
    return all;
  }

  /// Time per call in microseconds: of the slowest rank, over `repeats` calls one after another.
  template <class Call>
  double sample(int repeats, const Call& call, Nanos (*clock)() = now_ns) {
    comm_.barrier();
    const Nanos began = clock();
    for (int i = 0; i < repeats; ++i) call();
    return over_ranks(static_cast<double>(clock() - began) / repeats * 1e-3,
                      [](double a, double b) { return std::max(a, b); });
  }
  template <class Call>
  int repeats_for(const Call& call) {
    const double us = std::min(sample(1, call), sample(2, call));
    return static_cast<int>(std::clamp(options_.sample_ms * 1e3 / std::max(us, 0.1), 1.0, 10'000.0));
  }

  Communicator& comm_;  // the first one, also for what is said besides the calls
  const CollectivesOptions& options_;
  const int rank_, n_;
  const std::size_t largest_;
  SharedMemory input_, output_;
  std::vector<Line> lines_;
  DType dtype_ = DType::kF32;
};

}  // namespace

CollectivesResult measure_collectives(const std::vector<BenchedComm>& comms, const CollectivesOptions& options) {
  CollectivesResult result = BenchRank(comms, options).measure();
  for (const BenchedComm& one : comms) one.comm->barrier();
  return result;
}

}  // namespace bellows
