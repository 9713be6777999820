#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "bellows/base/error.h"
#include "bellows/elastic/member.h"
#include "collectives_bench.h"

namespace bellows {
namespace {

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
    char data[65536 - 16];
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

/// Core `rank` of those allowed, if every rank can have its own.
void pin(int rank, int ranks) {
  cpu_set_t allowed, own;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < ranks) return;
  CPU_ZERO(&own);
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed) && seen++ == rank) CPU_SET(cpu, &own);
  sched_setaffinity(0, sizeof own, &own);
}

CollectivesResult run_rank(const CollectivesOptions& options, const World& world, Bootstrap& bootstrap) {
  CommOptions comm_options;
  comm_options.transport = options.transport;
  comm_options.calibration = options.calibration;
  std::vector<BenchedComm> comms;
  for (const std::string& algorithm :
       options.algorithms.empty() ? std::vector<std::string>{options.algorithm} : options.algorithms) {
    comm_options.algorithm = algorithm;
    comms.push_back({connect(world, bootstrap, comm_options), algorithm});
  }
  return measure_collectives(comms, options);
}

CollectivesResult run_threads(const CollectivesOptions& options) {
  InprocBootstrap bootstrap;
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(options.ranks);
  CollectivesResult result;
  for (int rank = 0; rank < options.ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        pin(rank, options.ranks);
        auto mine = run_rank(options, World{rank, options.ranks, rank, options.ranks, 1}, bootstrap);
        if (rank == 0) result = std::move(mine);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
  return result;
}

// Rank 0 writes its result into a pipe, as JSON.
CollectivesResult run_processes(const CollectivesOptions& options) {
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
      pin(rank, options.ranks);
      const auto result = run_rank(options, World{rank, options.ranks, rank, options.ranks, 1}, bootstrap);
      const std::string text = nlohmann::json(result).dump();
      if (rank == 0 && write(ends[1], text.data(), text.size()) < 0) code = 1;
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
  return nlohmann::json::parse(text).get<CollectivesResult>();
}

}  // namespace

int allowed_core_count() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

CostedWorld costed_world_of(int ranks) {
  return {std::vector<int>(ranks, 0), std::max(1.0, static_cast<double>(ranks) / allowed_core_count())};
}

CostedCall costed_call_of(const std::string& op) {
  return op == "reduce_scatter" ? CostedCall::kReduceScatter
         : op == "all_gather"   ? CostedCall::kAllGather
                                : CostedCall::kAllReduce;
}

std::string calibration_path_of(const CollectivesOptions& options) {
  return options.calibration.empty() ? default_calibration_path() : options.calibration;
}

CollectivesResult run_collectives_ranks(const CollectivesOptions& options) {
  return options.transport == "inproc" ? run_threads(options) : run_processes(options);
}

bool started_as_rank() {
  for (const char* name : {"BELLOWS_COORDINATOR", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (std::getenv(name)) return true;
  return false;
}

std::optional<CollectivesResult> run_collectives_as_rank(CollectivesOptions& options) {
  const auto member = make_member_from_environment();
  JoinInfo info;
  info.fingerprint = "bench collectives";
  for (const auto* words : {&options.ops, &options.size_texts, &options.dtypes})
    for (const std::string& word : *words) info.fingerprint += " " + word;
  info.lanes = 1024;
  member->join(info);
  const auto membership = member->await_membership(0, Deadline::after(60));
  if (!membership) return std::nullopt;
  const auto world = membership->world_of(member->id());
  if (!world) return std::nullopt;
  options.ranks = world->world_size;
  // Ranks that are not bound share the processors of their host.
  options.crowding = std::max(1.0, static_cast<double>(world->local_size) / allowed_core_count());
  CollectivesResult result = run_rank(options, *world, member->bootstrap());
  member->leave(true);
  if (world->rank != 0) return std::nullopt;
  return result;
}

}  // namespace bellows
