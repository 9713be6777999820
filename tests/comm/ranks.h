#pragma once
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "bellows/base/error.h"
#include "bellows/comm/communicator.h"

namespace bellows {

/// How one rank of a test ended. `text` is what its body returned, or "error: …" for an exception.
struct Outcome {
  std::string text;
  int exit_code = 0;
  int signal = 0;
  double seconds = 0;  // from the start of all ranks to the end of this one's body
};

/// A body's own check: throws, so that it works in threads and in forked processes alike.
inline void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("required: " + what);
}

/// Memory that a test shares with the processes that it forks.
template <class T>
class Shared {
 public:
  Shared() {
    void* place = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) throw std::runtime_error("mmap");
    value_ = new (place) T();
  }
  ~Shared() { munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  T* operator->() const { return value_; }

 private:
  T* value_;
};

/// Blobs through memory that was shared before fork().
class ForkedBootstrap final : public Bootstrap {
 public:
  std::vector<std::string> exchange(const World& world, const std::string& tag, const std::string& blob,
                                    Deadline deadline) override {
    ++turn_;
    auto& mine = table_->slots[world.rank];
    require(blob.size() <= sizeof mine.data, "blob fits");
    std::memcpy(mine.data, blob.data(), blob.size());
    mine.size = blob.size();
    mine.written.store(turn_);
    wait(world, tag, deadline, [&](int r) { return table_->slots[r].written.load() >= turn_; });
    std::vector<std::string> blobs;
    for (int r = 0; r < world.world_size; ++r) blobs.emplace_back(table_->slots[r].data, table_->slots[r].size);
    mine.taken.store(turn_);
    wait(world, tag, deadline, [&](int r) { return table_->slots[r].taken.load() >= turn_; });
    return blobs;
  }

 private:
  struct Slot {
    std::atomic<int> written{0};
    std::atomic<int> taken{0};
    std::size_t size = 0;
    char data[8192];
  };
  struct Table {
    Slot slots[16];
  };
  template <class Ready>
  void wait(const World& world, const std::string& tag, Deadline deadline, const Ready& ready) {
    for (int r = 0; r < world.world_size; ++r)
      while (!ready(r)) {
        if (deadline.passed())
          throw CommError(CommError::Kind::kTimeout, tag, {r}, world.generation, "rank " + std::to_string(r) + " late");
        usleep(200);
      }
  }
  int turn_ = 0;
  Shared<Table> table_;
};

/// Transports that read peers' memory.
inline std::vector<std::string> every_transport() { return {"inproc", "shm"}; }
/// Transports that work by messages, with the algorithms that they may be told to use.
inline std::vector<std::string> every_route() {
  return {"inproc/ring", "shm/ring", "shm/halving", "ucx", "ucx/ring", "ucx/halving", "shm+ucx", "shm+ucx/direct"};
}
/// If mpirun has started this program: what it can test there. The program is then one rank of each test.
inline std::vector<std::string> every_mpi_route() {
  if (!std::getenv("OMPI_COMM_WORLD_SIZE")) return {};
  return {"mpi", "mpi/ring", "mpi/halving"};
}
inline int mpi_world_size() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") ? std::atoi(std::getenv("OMPI_COMM_WORLD_SIZE")) : 1;
}

/// Those in worlds that they are made for.
inline std::vector<std::tuple<std::string, int>> routes_in_worlds(const std::vector<std::string>& routes,
                                                                  const std::vector<int>& worlds) {
  std::vector<std::tuple<std::string, int>> result;
  for (const std::string& route : routes)
    for (const int world_size : worlds)
      if (route.find("halving") == std::string::npos || (world_size & (world_size - 1)) == 0)
        result.emplace_back(route, world_size);
  return result;
}
/// Why this machine cannot run a test over `transport`; empty if it can.
inline std::string not_covered(const std::string& transport) {
  if (transport.find("ucx") != std::string::npos &&
      !std::filesystem::exists(std::string(BELLOWS_BIN_DIR) + "/../lib/libbellows_ucx.so"))
    return "not covered: UCX (it was not found when this was built)";
  return "";
}

using Body = std::function<std::string(int rank, Communicator& comm)>;

struct RankOptions {
  double timeout_s = 20;
  std::uint64_t generation = 4;
};

/// Runs `body` on `world_size` connected ranks: threads for inproc, forked processes otherwise. `transport` may name an
/// algorithm as well: "shm/ring". Over "shm+ucx", every two ranks take each other for one host and the rest for others.
/// Processes that did not end by themselves within a minute are killed.
inline std::vector<Outcome> run_on(const std::string& transport, int world_size, const Body& body,
                                   const RankOptions& options = {}) {
  const auto guarded = [&](int rank, Bootstrap& bootstrap) -> std::string {
    try {
      CommOptions comm_options;
      comm_options.transport = transport.substr(0, transport.find('/'));
      if (transport.find('/') != std::string::npos) comm_options.algorithm = transport.substr(transport.find('/') + 1);
      if (comm_options.transport == "shm+ucx") setenv("BELLOWS_TEST_MACHINE", std::to_string(rank / 2).c_str(), 1);
      comm_options.timeout_s = options.timeout_s;
      auto comm = connect(World{rank, world_size, rank, world_size, options.generation}, bootstrap, comm_options);
      return body(rank, *comm);
    } catch (const std::exception& error) {
      return std::string("error: ") + error.what();
    }
  };
  const Nanos began = now_ns();
  std::vector<Outcome> outcomes(world_size);
  if (transport.rfind("mpi", 0) == 0) {
    static World place;
    static std::string why;
    static const std::unique_ptr<Bootstrap> mpi = make_mpi_bootstrap(&place, &why);
    outcomes[place.rank].text = mpi ? guarded(place.rank, *mpi) : "error: " + why;
    return outcomes;
  }
  if (transport.rfind("inproc", 0) == 0) {
    InprocBootstrap bootstrap;
    std::vector<std::thread> threads;
    for (int r = 0; r < world_size; ++r)
      threads.emplace_back([&, r] {
        outcomes[r].text = guarded(r, bootstrap);
        outcomes[r].seconds = seconds(now_ns() - began);
      });
    for (auto& thread : threads) thread.join();
    return outcomes;
  }
  struct Report {
    char text[16][2048];
    double seconds[16];
  };
  Shared<Report> report;
  ForkedBootstrap bootstrap;
  std::vector<pid_t> children;
  for (int r = 0; r < world_size; ++r) {
    const pid_t child = fork();
    if (child == 0) {
      const std::string text = guarded(r, bootstrap);
      std::strncpy(report->text[r], text.c_str(), sizeof report->text[r] - 1);
      report->seconds[r] = seconds(now_ns() - began);
      _exit(0);
    }
    children.push_back(child);
  }
  const Deadline patience = Deadline::after(60);
  for (int r = 0; r < world_size; ++r) {
    int status = 0;
    while (waitpid(children[r], &status, WNOHANG) == 0) {
      if (patience.passed()) {
        kill(children[r], SIGKILL);
        waitpid(children[r], &status, 0);
        break;
      }
      usleep(1000);
    }
    if (WIFEXITED(status)) outcomes[r].exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) outcomes[r].signal = WTERMSIG(status);
    outcomes[r].text = report->text[r];
    outcomes[r].seconds = report->seconds[r];
  }
  return outcomes;
}

}  // namespace bellows
