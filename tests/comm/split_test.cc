#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "bellows/comm/communicator.h"
#include "lane_data.h"
#include "ranks.h"

namespace bellows {
namespace {

CommOptions options_for(const std::string& transport) {
  CommOptions options;
  options.transport = transport.substr(0, transport.find('/'));
  if (transport.find('/') != std::string::npos) options.algorithm = transport.substr(transport.find('/') + 1);
  options.timeout_s = 20;
  return options;
}

float sum_over(Communicator& comm, float mine) {
  SharedMemory memory(4096);
  const Window window = comm.expose(memory, 0, memory.size());
  memory.as<float>()[0] = mine;
  AllReduceArgs args;
  args.window = args.destination = window;
  args.sums = memory.data();
  const int n = comm.world().world_size;
  for (int r = 0; r < n; ++r) args.pieces.push_back({r, {r, 1}, 0});
  args.owned = {{n - 1, {0, 1}}};
  comm.all_reduce(args).wait();
  comm.barrier();  // nobody writes here any more
  return memory.as<float>()[0];
}

class Split : public testing::TestWithParam<std::string> {};

TEST_P(Split, MakesPartsThatWorkBesideTheWholeAndEachOther) {
  const auto outcomes = run_on(GetParam(), 6, [](int rank, Communicator& whole) {
    // Rows of three ranks, columns of two, as in hybrid sharding; then parts of unequal size, one rank in none.
    const auto row = split(whole, rank / 3, options_for(GetParam())), column = split(whole, rank % 3);
    require(row->world().world_size == 3 && row->world().rank == rank % 3, "rank in the row");
    require(column->world().world_size == 2 && column->world().rank == rank / 3, "rank in the column");
    require(row->world().generation == whole.world().generation, "generation");
    for (int turn = 0; turn < 3; ++turn) {
      const float x = static_cast<float>(rank + turn);
      require(sum_over(*row, x) == static_cast<float>(3 * (rank / 3 * 3 + turn) + 3), "sum of the row");
      require(sum_over(*column, x) == static_cast<float>(2 * (rank % 3 + turn) + 3), "sum of the column");
      require(sum_over(whole, x) == static_cast<float>(15 + 6 * turn), "sum of all");
    }
    const auto uneven = split(whole, rank == 5 ? -1 : rank == 0 ? 7 : 2);
    require((uneven == nullptr) == (rank == 5), "no part without a color");
    if (uneven) {
      const auto blobs = uneven->all_gather_blobs(std::to_string(rank));
      require(blobs == (rank == 0 ? std::vector<std::string>{"0"} : std::vector<std::string>{"1", "2", "3", "4"}),
              "blobs of the part");
    }
    return "";
  });
  for (std::size_t r = 0; r < outcomes.size(); ++r) EXPECT_EQ(outcomes[r].text, "") << "rank " << r;
}

TEST_P(Split, AFailureOfAPartNamesRanksOfTheWholeAndReachesAll) {
  const auto outcomes = run_on(GetParam(), 4, [](int rank, Communicator& whole) -> std::string {
    const auto part = split(whole, rank % 2, options_for(GetParam()));
    try {
      whole.barrier();
      if (rank == 3) throw std::runtime_error("gone");  // leaves both
      if (rank == 1) part->barrier();
      whole.barrier();
    } catch (const CommError& error) {
      std::string ranks;
      for (const int r : error.ranks()) ranks += std::to_string(r);
      return ranks + (part->failure() ? "" : " but no failure");
    }
    return "no error";
  });
  for (const int r : {0, 1, 2}) EXPECT_EQ(outcomes[r].text, "3") << "rank " << r;
}

TEST_P(Split, AbortingTheWholeEndsACallOnAPart) {
  const auto outcomes = run_on(GetParam(), 2, [](int rank, Communicator& whole) -> std::string {
    const auto part = split(whole, 0, options_for(GetParam()));
    whole.barrier();
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      whole.abort("enough");
    });
    std::string text = "no error";
    try {
      if (rank == 0) part->barrier();  // rank 1 never comes
      if (rank == 1) whole.barrier();
    } catch (const CommError& error) {
      text = error.kind() == CommError::Kind::kAborted ? "aborted" : error.what();
    }
    other.join();
    return text;
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.text, "aborted");
}

TEST_P(Split, TellsEveryoneWhyAPartCouldNotBeMade) {
  const auto outcomes = run_on(GetParam(), 3, [](int rank, Communicator& whole) -> std::string {
    CommOptions options;
    if (rank == 0) options.transport = "pigeon";
    try {
      split(whole, 0, options);
    } catch (const std::exception& error) {
      whole.barrier();  // the whole goes on
      return error.what();
    }
    return "no error";
  });
  for (const Outcome& outcome : outcomes) EXPECT_NE(outcome.text, "no error");
  EXPECT_NE(outcomes[0].text.find("pigeon"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Transports, Split, testing::Values("inproc", "shm", "inproc/ring"), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
});

}  // namespace
}  // namespace bellows
