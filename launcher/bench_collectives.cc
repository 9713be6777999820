#include "bench_collectives.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "bellows/base/clock.h"
#include "bellows/base/error.h"
#include "bellows/comm/communicator.h"
#include "bellows/elastic/session.h"

namespace bellows {
namespace {

struct Options {
  std::vector<std::string> ops = {"reduce_scatter", "all_gather", "all_reduce"};
  std::vector<std::string> size_texts = {"4K", "64K", "1M", "16M", "64M"};
  std::vector<std::size_t> sizes;
  int ranks = 2;
  std::string transport = "shm";
  std::string versus;
  int samples = 7;
  double sample_ms = 30;  // a sample repeats the call for about so long
  bool json = false;
  bool csv = false;
  double crowding = 1;  // ranks per core, at least 1
};

struct Timing {
  double median_us = 0, min_us = 0, max_us = 0;
};

struct Row {
  std::string op;
  std::size_t bytes = 0;
  Timing ours;
  double limit_us = 0;
  std::optional<double> mpi_us;
  std::string mpi_settings;
};

// "64K", "1M", "2G" or plain bytes; whole float32 elements.
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

// ---- Ranks ----

/// Blobs through memory that was shared before the ranks were forked.
class ForkedBootstrap final : public Bootstrap {
 public:
  explicit ForkedBootstrap(int ranks)
      : bytes_(sizeof(Slot) * static_cast<std::size_t>(ranks)),
        slots_(static_cast<Slot*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    if (slots_ == MAP_FAILED) throw std::runtime_error("mmap failed");
  }
  ~ForkedBootstrap() override { munmap(slots_, bytes_); }
  ForkedBootstrap(const ForkedBootstrap&) = delete;

  std::vector<std::string> exchange(const World& world, const std::string& tag, const std::string& blob,
                                    Deadline deadline) override {
    ++turn_;
    Slot& mine = slots_[world.rank];
    if (blob.size() > sizeof mine.data) throw std::runtime_error("blob too large");
    std::memcpy(mine.data, blob.data(), blob.size());
    mine.size = blob.size();
    mine.written.store(turn_);
    await(world, tag, deadline, &Slot::written);
    std::vector<std::string> blobs;
    for (int r = 0; r < world.world_size; ++r) blobs.emplace_back(slots_[r].data, slots_[r].size);
    mine.taken.store(turn_);
    await(world, tag, deadline, &Slot::taken);
    return blobs;
  }

 private:
  struct Slot {  // memory from mmap starts as zeros
    std::atomic<int> written, taken;
    std::size_t size;
    char data[8192 - 16];
  };
  void await(const World& world, const std::string& tag, Deadline deadline, std::atomic<int> Slot::*turn) {
    for (int r = 0; r < world.world_size; ++r)
      while ((slots_[r].*turn).load() < turn_) {
        if (deadline.passed())
          throw CommError(CommError::Kind::kTimeout, tag, {r}, world.generation,
                          "rank " + std::to_string(r) + " did not start in time");
        usleep(500);
      }
  }
  int turn_ = 0;  // exchanges of this rank so far
  const std::size_t bytes_;
  Slot* const slots_;
};

Nanos thread_cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return Nanos{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

int cores() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

/// Core `rank` of those allowed, if every rank can have its own.
void pin(int rank, int ranks) {
  cpu_set_t allowed, own;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < ranks) return;
  CPU_ZERO(&own);
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed) && seen++ == rank) CPU_SET(cpu, &own);
  sched_setaffinity(0, sizeof own, &own);
}

// What a processor needs for the same bytes without any other rank: plain loops that the compiler vectorises.
void plain_sum(float* __restrict out, const float* in, std::size_t parts, std::size_t n) {
  switch (parts) {
    case 1:
      std::memcpy(out, in, n * sizeof(float));
      return;
    case 2:
      for (std::size_t i = 0; i < n; ++i) out[i] = in[i] + in[n + i];
      return;
    case 4:
      for (std::size_t i = 0; i < n; ++i) out[i] = (in[i] + in[n + i]) + (in[2 * n + i] + in[3 * n + i]);
      return;
    default:
      // In pieces that stay in the first-level cache, so that memory is passed over once here as well.
      for (std::size_t begin = 0; begin < n; begin += 2048) {
        const std::size_t end = std::min(n, begin + 2048);
        for (std::size_t i = begin; i < end; ++i) out[i] = in[i] + in[n + i];
        for (std::size_t p = 2; p < parts; ++p)
          for (std::size_t i = begin; i < end; ++i) out[i] += in[p * n + i];
      }
  }
}

/// One rank of the benchmark: two exposed vectors, and the calls that are timed on them.
class BenchRank {
 public:
  BenchRank(Communicator& comm, const Options& options)
      : comm_(comm),
        options_(options),
        n_(static_cast<std::size_t>(comm.world().world_size)),
        largest_(*std::max_element(options.sizes.begin(), options.sizes.end())),
        input_(largest_),
        output_(largest_),
        in_(comm.expose(input_, 0, largest_)),
        out_(comm.expose(output_, 0, largest_)) {
    for (float& x : input_.as<float>()) x = static_cast<float>(comm.world().rank + 1);
  }

  std::vector<Row> measure() {
    std::vector<Row> rows;
    for (const std::string& op : options_.ops)
      for (const std::size_t bytes : options_.sizes) {
        Row row;
        row.op = op;
        row.bytes = bytes;
        const std::size_t count = bytes / sizeof(float);
        check(op, count);
        // Alternating, so that a disturbance of the machine hits both.
        std::vector<double> ours, limit;
        const int repeats = repeats_for([&] { run(op, count); }), plain = repeats_for([&] { run_plain(op, count); });
        for (int s = 0; s < options_.samples; ++s) {
          ours.push_back(sample(repeats, [&] { run(op, count); }));
          // Its own processor time: a loop that never sleeps is preempted on a busy host, and would look slower than it
          // is.
          limit.push_back(sample(
              plain, [&] { run_plain(op, count); }, thread_cpu_ns));
        }
        std::sort(ours.begin(), ours.end());
        std::sort(limit.begin(), limit.end());
        row.ours = {ours[ours.size() / 2], ours.front(), ours.back()};
        row.limit_us = limit[limit.size() / 2] * options_.crowding;
        rows.push_back(row);
      }
    return rows;
  }

 private:
  Work start_reduce_scatter(std::size_t count) {
    ReduceScatterArgs args;
    args.window = in_;
    for (std::size_t r = 0; r < n_; ++r) args.pieces.push_back({static_cast<int>(r), {static_cast<int>(r), 1}, 0});
    for (std::size_t r = 0; r < n_; ++r)
      args.owned.push_back({static_cast<int>(r), even_chunk(count, static_cast<int>(n_), static_cast<int>(r))});
    args.complete = true;
    args.results = {{{0, static_cast<int>(n_)}, output_.data()}};
    return comm_.reduce_scatter(std::move(args));
  }
  Work start_all_gather(std::size_t count, Window window) {
    AllGatherArgs args;
    args.window = window;
    for (std::size_t r = 0; r < n_; ++r)
      args.owned.push_back({static_cast<int>(r), even_chunk(count, static_cast<int>(n_), static_cast<int>(r))});
    return comm_.all_gather(std::move(args));
  }

  Work start_all_reduce(std::size_t count) {
    AllReduceArgs args;
    args.window = in_;
    args.destination = out_;
    args.sums = output_.data();
    for (int r = 0; r < static_cast<int>(n_); ++r) {
      args.pieces.push_back({r, {r, 1}, 0});
      args.owned.push_back({r, even_chunk(count, static_cast<int>(n_), r)});
    }
    return comm_.all_reduce(std::move(args));
  }

  void run(const std::string& op, std::size_t count) {
    if (op == "reduce_scatter") return start_reduce_scatter(count).wait();
    if (op == "all_gather") return start_all_gather(count, out_).wait();
    start_all_reduce(count).wait();
  }

  void run_plain(const std::string& op, std::size_t count) {
    const std::size_t chunk = count / n_;
    if (op != "all_gather") plain_sum(output_.as<float>().data(), input_.as<float>().data(), n_, chunk);
    if (op != "reduce_scatter")
      std::memcpy(output_.data() + chunk * sizeof(float), input_.data() + chunk * sizeof(float),
                  (count - chunk) * sizeof(float));
  }

  void check(const std::string& op, std::size_t count) {
    const auto out = output_.as<float>();
    std::fill(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(count), static_cast<float>(comm_.world().rank));
    comm_.barrier();
    run(op, count);
    const auto own = even_chunk(count, static_cast<int>(n_), comm_.world().rank);
    const float sum = static_cast<float>(n_ * (n_ + 1) / 2);
    const std::size_t upto = op == "reduce_scatter" ? own.size() : count;
    std::size_t wrong = 0;
    for (std::size_t r = 0; r < n_; ++r) {
      const auto chunk = even_chunk(count, static_cast<int>(n_), static_cast<int>(r));
      for (std::size_t i = chunk.begin; i < std::min(upto, chunk.end); ++i)
        wrong += out[i] != (op == "all_gather" ? static_cast<float>(r) : sum) ? 1 : 0;
    }
    if (wrong > 0) throw std::runtime_error(op + " of " + std::to_string(count) + " elements gave wrong values");
    comm_.barrier();
  }

  /// Time per call in microseconds: of the slowest rank, over `repeats` calls one after another.
  template <class Call>
  double sample(int repeats, const Call& call, Nanos (*clock)() = now_ns) {
    comm_.barrier();
    const Nanos began = clock();
    for (int i = 0; i < repeats; ++i) call();
    const double mine = static_cast<double>(clock() - began) / repeats * 1e-3;
    double slowest = 0;
    for (const std::string& blob :
         comm_.all_gather_blobs(std::string(reinterpret_cast<const char*>(&mine), sizeof mine))) {
      double theirs;
      std::memcpy(&theirs, blob.data(), sizeof theirs);
      slowest = std::max(slowest, theirs);
    }
    return slowest;
  }
  template <class Call>
  int repeats_for(const Call& call) {
    const double us = std::min(sample(1, call), sample(2, call));
    return static_cast<int>(std::clamp(options_.sample_ms * 1e3 / std::max(us, 0.1), 1.0, 10'000.0));
  }

  Communicator& comm_;
  const Options& options_;
  const std::size_t n_, largest_;
  SharedMemory input_, output_;
  const Window in_, out_;
};

std::vector<Row> run_rank(const Options& options, int rank, Bootstrap& bootstrap) {
  pin(rank, options.ranks);
  CommOptions comm_options;
  comm_options.transport = options.transport;
  const auto comm = connect(World{rank, options.ranks, rank, options.ranks, 1}, bootstrap, comm_options);
  std::vector<Row> rows = BenchRank(*comm, options).measure();
  comm->barrier();
  return rows;
}

std::vector<Row> run_threads(const Options& options) {
  InprocBootstrap bootstrap;
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(options.ranks);
  std::vector<Row> rows;
  for (int rank = 0; rank < options.ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        auto mine = run_rank(options, rank, bootstrap);
        if (rank == 0) rows = std::move(mine);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
  return rows;
}

// row = op bytes median min max limit "\n", written by rank 0 into a pipe
std::vector<Row> run_processes(const Options& options) {
  ForkedBootstrap bootstrap(options.ranks);
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe failed");
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("fork failed");
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    close(ends[0]);
    int code = 0;
    try {
      std::ostringstream text;
      for (const Row& row : run_rank(options, rank, bootstrap))
        text << row.op << ' ' << row.bytes << ' ' << row.ours.median_us << ' ' << row.ours.min_us << ' '
             << row.ours.max_us << ' ' << row.limit_us << '\n';
      if (rank == 0 && write(ends[1], text.str().data(), text.str().size()) < 0) code = 1;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      code = 1;
    }
    _exit(code);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  close(ends[0]);
  bool failed = false;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  }
  if (failed) throw std::runtime_error("a rank of the benchmark failed");
  std::istringstream in(text);
  std::vector<Row> rows;
  for (Row row; in >> row.op >> row.bytes >> row.ours.median_us >> row.ours.min_us >> row.ours.max_us >> row.limit_us;)
    rows.push_back(row);
  return rows;
}

std::vector<Row> run_ranks(const Options& options) {
  return options.transport == "inproc" ? run_threads(options) : run_processes(options);
}

// ---- Open MPI, in the same invocation ----

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

/// One start of mpirun: calls `take(row, microseconds)` for each row that was measured.
template <class Take>
void run_mpi(const Options& options, const std::string& flags, const std::vector<Row*>& rows, int samples,
             const Take& take) {
  const auto peer = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "bellows-mpi-peer";
  std::string pairs;
  for (const Row* row : rows) pairs += (pairs.empty() ? "" : ",") + row->op + ":" + std::to_string(row->bytes);
  // Memory that the allocator keeps and backs with huge pages: without it every call faults its buffers in anew.
  const std::string command =
      "GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184:"
      "glibc.malloc.top_pad=67108864 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 120 mpirun "
      "--oversubscribe " +
      std::string(cores() < options.ranks ? "--bind-to none --mca mpi_yield_when_idle 1" : "--bind-to core") + " -n " +
      std::to_string(options.ranks) + flags + " " + peer.string() + " " + pairs + " " + std::to_string(samples) + " " +
      std::to_string(options.sample_ms) + " 2>/dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) throw std::runtime_error("cannot start mpirun");
  char op[64];
  unsigned long long bytes;
  double us;
  while (std::fscanf(pipe, "%63s %llu %lf", op, &bytes, &us) == 3)
    for (Row* row : rows)
      if (row->op == op && row->bytes == bytes) take(*row, us);
  pclose(pipe);  // an algorithm that does not exist for these ranks ends with an error, and does not count
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// First the best settings for every row; then both sides in turn, so that a disturbance of the machine hits both alike.
std::vector<Row> measure_with_mpi(const Options& options) {
  const auto peer = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "bellows-mpi-peer";
  if (!std::filesystem::exists(peer))
    throw UserError("--versus mpi needs " + peer.string() + ", which is built where MPI is found (libopenmpi-dev)");
  std::vector<Row> rows;
  std::vector<Row*> all;
  for (const std::string& op : options.ops)
    for (const std::size_t bytes : options.sizes) {
      rows.emplace_back();
      rows.back().op = op;
      rows.back().bytes = bytes;
    }
  for (Row& row : rows) all.push_back(&row);
  const auto settings = mpi_settings();
  for (const auto& [name, flags] : settings)
    run_mpi(options, flags, all, 3, [&, &name = name](Row& row, double us) {
      if (!row.mpi_us || us < *row.mpi_us) row.mpi_us = us, row.mpi_settings = name;
    });
  for (const Row& row : rows)
    if (!row.mpi_us) throw UserError("mpirun gave no result; is Open MPI installed (openmpi-bin)?");

  constexpr int kRounds = 3;
  std::vector<std::vector<double>> theirs(rows.size()), ours(rows.size()), limit(rows.size());
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<Row> now = run_ranks(options);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      ours[i].push_back(now[i].ours.median_us);
      limit[i].push_back(now[i].limit_us);
      rows[i].ours.min_us = round == 0 ? now[i].ours.min_us : std::min(rows[i].ours.min_us, now[i].ours.min_us);
      rows[i].ours.max_us = std::max(rows[i].ours.max_us, now[i].ours.max_us);
    }
    for (const auto& [name, flags] : settings) {
      std::vector<Row*> best;
      for (Row& row : rows)
        if (row.mpi_settings == name) best.push_back(&row);
      if (!best.empty())
        run_mpi(options, flags, best, options.samples,
                [&](Row& row, double us) { theirs[static_cast<std::size_t>(&row - rows.data())].push_back(us); });
    }
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].ours.median_us = median(ours[i]);
    rows[i].limit_us = median(limit[i]);
    if (!theirs[i].empty()) rows[i].mpi_us = median(theirs[i]);
  }
  return rows;
}

// ---- Output ----

double busbw_factor(const std::string& op, int ranks) {
  const double n = ranks;
  return (op == "all_reduce" ? 2 : 1) * (n - 1) / n;
}

nlohmann::ordered_json to_json(const Row& row, const Options& options) {
  const double algbw = static_cast<double>(row.bytes) / row.ours.median_us * 1e-3;
  nlohmann::ordered_json object = {{"op", row.op},
                                   {"transport", options.transport},
                                   {"algorithm", "direct"},
                                   {"dtype", "f32"},
                                   {"bytes", row.bytes},
                                   {"ranks", options.ranks},
                                   {"median_us", row.ours.median_us},
                                   {"min_us", row.ours.min_us},
                                   {"max_us", row.ours.max_us},
                                   {"algbw_gbps", algbw},
                                   {"busbw_gbps", algbw * busbw_factor(row.op, options.ranks)},
                                   {"limit_ratio", row.limit_us / row.ours.median_us}};
  if (row.mpi_us) {
    object["mpi_median_us"] = *row.mpi_us;
    object["ratio"] = *row.mpi_us / row.ours.median_us;
  }
  return object;
}

void print(const std::vector<Row>& rows, const Options& options) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Row& row : rows) all.push_back(to_json(row, options));
  if (options.json) {
    std::printf("%s\n", all.dump(2).c_str());
    return;
  }
  if (options.csv) {
    std::string header;
    for (const auto& [key, value] : all[0].items()) header += (header.empty() ? "" : ",") + key;
    std::printf("%s\n", header.c_str());
    for (const auto& object : all) {
      std::string line;
      for (const auto& [key, value] : object.items())
        line += (line.empty() ? "" : ",") + (value.is_string() ? value.get<std::string>() : value.dump());
      std::printf("%s\n", line.c_str());
    }
    return;
  }
  std::printf("%-15s %-7s %5s %12s %11s %11s %11s %8s %8s %6s", "op", "over", "ranks", "bytes", "median us", "min us",
              "max us", "alg GB/s", "bus GB/s", "limit");
  std::printf(options.versus.empty() ? "\n" : " %11s %7s  %s\n", "MPI us", "ratio", "MPI's best");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const auto& o = all[i];
    std::printf("%-15s %-7s %5d %12zu %11.1f %11.1f %11.1f %8.2f %8.2f %6.2f", row.op.c_str(),
                options.transport.c_str(), options.ranks, row.bytes, row.ours.median_us, row.ours.min_us,
                row.ours.max_us, o["algbw_gbps"].get<double>(), o["busbw_gbps"].get<double>(),
                o["limit_ratio"].get<double>());
    if (row.mpi_us)
      std::printf(" %11.1f %7.2f  %s", *row.mpi_us, *row.mpi_us / row.ours.median_us, row.mpi_settings.c_str());
    std::printf("\n");
  }
}

int run_benchmark(Options& options) {
  options.crowding = std::max(1.0, static_cast<double>(options.ranks) / cores());
  for (const std::string& text : options.size_texts) options.sizes.push_back(parse_size(text));
  print(options.versus == "mpi" ? measure_with_mpi(options) : run_ranks(options), options);
  return 0;
}

}  // namespace

int bench_collectives_main(int argc, char** argv) {
  Options options;
  std::vector<std::string> names;
  for (const TransportInfo& info : transports()) names.push_back(info.name);
  CLI::App app("Measure collectives between ranks of this host, on windows (zero-copy)");
  app.add_option("--ops", options.ops, "calls to measure")
      ->delimiter(',')
      ->check(CLI::IsMember({"reduce_scatter", "all_gather", "all_reduce"}))
      ->capture_default_str();
  app.add_option("--sizes", options.size_texts, "bytes of the whole vector")->delimiter(',')->capture_default_str();
  app.add_option("--ranks", options.ranks, "ranks")->check(CLI::Range(1, 256))->capture_default_str();
  app.add_option("--transport", options.transport, "transport")->check(CLI::IsMember(names))->capture_default_str();
  app.add_option("--versus", options.versus, "compare with Open MPI at its best")->check(CLI::IsMember({"mpi"}));
  app.add_option("--samples", options.samples, "samples per median")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--sample-ms", options.sample_ms, "length of a sample in milliseconds")
      ->check(CLI::Range(0.01, 60'000.0))
      ->capture_default_str();
  auto* json = app.add_flag("--json", options.json, "print JSON");
  app.add_flag("--csv", options.csv, "print CSV")->excludes(json);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return run_main([&] { return run_benchmark(options); });
}

}  // namespace bellows
