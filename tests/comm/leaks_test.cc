#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "bellows/comm/communicator.h"
#include "ranks.h"

namespace bellows {
namespace {

std::size_t entries(const char* folder) {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()));
}
std::size_t shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:bellows") != std::string::npos ? 1 : 0;
  return count;
}

void use_a_communicator(Bootstrap& bootstrap, const std::string& transport, int rank, std::uint64_t generation,
                        const SharedMemory& memory) {
  CommOptions options;
  options.transport = transport.substr(0, transport.find('/'));
  if (transport.find('/') != std::string::npos) options.algorithm = transport.substr(transport.find('/') + 1);
  auto comm = connect(World{rank, 2, rank, 2, generation}, bootstrap, options);
  const Window window = comm->expose(memory, 0, memory.size());
  comm->expose(memory, 0, 64);  // the same segment again
  AllGatherArgs args;
  args.window = window;
  args.owned = {{0, {0, 8}}, {1, {8, 16}}};
  comm->all_gather(args).wait();
  comm->barrier();
}

class LeaksOfProcesses : public testing::TestWithParam<std::string> {};

TEST_P(LeaksOfProcesses, AHundredGenerationsLeaveNoDescriptorThreadOrMapping) {
  const std::string transport = GetParam();
  if (const std::string why = not_covered(transport); !why.empty()) GTEST_SKIP() << why;
  Shared<std::atomic<int>> failures;
  ForkedBootstrap bootstrap;
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      SharedMemory memory(1 << 16);  // lives longer than any generation
      use_a_communicator(bootstrap, transport, rank, 1, memory);
      const std::size_t fds = entries("/proc/self/fd"), threads = entries("/proc/self/task"), maps = shared_mappings();
      for (std::uint64_t generation = 2; generation <= 101; ++generation)
        use_a_communicator(bootstrap, transport, rank, generation, memory);
      const bool clean = entries("/proc/self/fd") == fds && entries("/proc/self/task") == threads &&
                         shared_mappings() == maps && maps == 1;
      if (!clean) ++*failures.operator->();
      _exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  EXPECT_EQ(*failures.operator->(), 0);
}
INSTANTIATE_TEST_SUITE_P(Transports, LeaksOfProcesses, testing::Values("shm", "shm/ring", "ucx"), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
});

// A thread of UCX that is there when ranks are forked watches their descriptors for ever.
TEST(Leaks, AskingWhatTransportsThereAreLeavesNoThreadBehind) {
  EXPECT_EXIT(
      {
        const std::size_t before = entries("/proc/self/task");
        transports();
        std::size_t now = 0;
        for (int patience = 100; (now = entries("/proc/self/task")) > before && patience > 0; --patience)
          usleep(20'000);
        std::fprintf(stderr, "%zu thread(s) more\n", now - before);
        _exit(now == before ? 0 : 1);
      },
      testing::ExitedWithCode(0), "0 thread");
}

TEST(Leaks, ThreadsOfOneProcessLeaveNothingEither) {
  const auto generation = [](std::uint64_t number) {
    InprocBootstrap bootstrap;
    SharedMemory memory[2] = {SharedMemory(4096), SharedMemory(4096)};
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank)
      ranks.emplace_back([&, rank] { use_a_communicator(bootstrap, "inproc", rank, number, memory[rank]); });
    for (auto& rank : ranks) rank.join();
  };
  generation(1);
  const std::size_t fds = entries("/proc/self/fd"), maps = shared_mappings();
  for (std::uint64_t number = 2; number <= 101; ++number) generation(number);
  EXPECT_EQ(entries("/proc/self/fd"), fds);
  EXPECT_EQ(shared_mappings(), maps);
}

}  // namespace
}  // namespace bellows
