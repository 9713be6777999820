// What ends a generation: a peer that dies, stops, leaves, aborts or calls something else. Everybody else must hear of
// it soon, with the rank, the operation and the generation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>

#include "bellows/comm/communicator.h"
#include "ranks.h"

namespace bellows {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Lt;

/// Calls `call` and reports the CommError that it must end with as "kind op=… ranks=… gen=…: message".
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const CommError& error) {
    std::string text = error.kind() == CommError::Kind::kPeerLost  ? "lost"
                       : error.kind() == CommError::Kind::kTimeout ? "timeout"
                                                                   : "aborted";
    text += " op=" + error.operation() + " ranks=";
    for (const int r : error.ranks()) text += std::to_string(r) + ";";
    return text + " gen=" + std::to_string(error.generation()) + ": " + error.what();
  }
  return "no error";
}

/// A reduce-scatter of `count` floats in which every rank owns everything, so that it takes a while.
Work add_all(Communicator& comm, Window window, std::vector<float>& sum, const char* what) {
  ReduceScatterArgs args;
  args.window = window;
  for (int r = 0; r < comm.world().world_size; ++r) {
    args.pieces.push_back({r, {r, 1}, 0});
    args.owned.push_back({r, {0, sum.size()}});
  }
  args.complete = true;
  args.results = {{{0, comm.world().world_size}, sum.data()}};
  args.what = what;
  return comm.reduce_scatter(args);
}

class Failures : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = not_covered(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
  std::string transport() const { return GetParam(); }
};
std::string name_of_route(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name)
    if (c == '/' || c == '+') c = '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(Transports, Failures, testing::ValuesIn(every_transport()));
INSTANTIATE_TEST_SUITE_P(Routes, Failures, testing::Values("inproc/ring", "shm/ring", "ucx", "shm+ucx"), name_of_route);

/// What only processes can suffer: threads are not killed or stopped one by one.
class ProcessFailures : public Failures {};
std::vector<std::string> transports_between_processes() {
  std::vector<std::string> names = every_transport();
  std::erase(names, "inproc");
  return names;
}
INSTANTIATE_TEST_SUITE_P(Transports, ProcessFailures, testing::ValuesIn(transports_between_processes()));
INSTANTIATE_TEST_SUITE_P(Routes, ProcessFailures, testing::Values("shm/ring", "ucx", "shm+ucx"), name_of_route);

TEST_P(ProcessFailures, AKilledPeerIsNamedWithinASecondByAllOthers) {
  struct Times {
    std::atomic<Nanos> killed{0};
    std::atomic<Nanos> noticed[4];
  };
  Shared<Times> times;
  const auto outcomes = run_on(transport(), 4, [&](int rank, Communicator& comm) -> std::string {
    comm.barrier();
    if (rank == 2) {
      usleep(300'000);  // the others are asleep by now
      times->killed = now_ns();
      kill(getpid(), SIGKILL);
    }
    std::string text = error_of([&] { comm.barrier("the fatal barrier"); });
    times->noticed[rank] = now_ns();
    return text + " again " + error_of([&] { comm.barrier("a later call"); });
  });
  EXPECT_EQ(outcomes[2].signal, SIGKILL);
  for (const int r : {0, 1, 3}) {
    EXPECT_THAT(outcomes[r].text, AllOf(HasSubstr("lost op=the fatal barrier ranks=2; gen=4"),
                                        HasSubstr("again lost op=the fatal barrier")))
        << r;
    EXPECT_LT(seconds(times->noticed[r] - times->killed), 1.0) << r;
    RecordProperty("noticed_ms_by_rank_" + std::to_string(r),
                   std::to_string(1e3 * seconds(times->noticed[r] - times->killed)));
  }
}

TEST_P(ProcessFailures, APeerKilledInTheMiddleOfReducingIsNamedAndItsMemoryStaysReadable) {
  const auto outcomes = run_on(transport(), 3, [&](int rank, Communicator& comm) -> std::string {
    SharedMemory memory(std::size_t{4} << 20);
    const Window window = comm.expose(memory, 0, memory.size());
    std::vector<float> sum(memory.size() / sizeof(float));
    return error_of([&] {
      for (int i = 0; i < 1000; ++i) {
        const Work work = add_all(comm, window, sum, "reduce_scatter block.3");
        if (rank == 1 && i == 5) kill(getpid(), SIGKILL);
        work.wait();
      }
    });
  });
  for (const int r : {0, 2}) EXPECT_THAT(outcomes[r].text, HasSubstr("lost op=reduce_scatter block.3 ranks=1; gen=4"));
}

TEST_P(ProcessFailures, APeerThatExitsWithoutAWordIsNamed) {
  const auto outcomes = run_on(transport(), 3, [&](int rank, Communicator& comm) -> std::string {
    comm.barrier();
    if (rank == 0) _exit(7);
    return error_of([&] { comm.barrier(); });
  });
  EXPECT_EQ(outcomes[0].exit_code, 7);
  for (const int r : {1, 2}) EXPECT_THAT(outcomes[r].text, AllOf(HasSubstr("lost"), HasSubstr("ranks=0;")));
}

TEST_P(ProcessFailures, AStoppedPeerEndsInATimeoutThatNamesIt) {
  Shared<std::atomic<pid_t>> stopped;
  RankOptions options;
  options.timeout_s = 0.5;
  const auto outcomes = run_on(
      transport(), 3,
      [&](int rank, Communicator& comm) -> std::string {
        comm.barrier();
        if (rank == 1) {
          *stopped.operator->() = getpid();
          raise(SIGSTOP);
          return error_of([&] { comm.barrier(); });
        }
        const std::string text = error_of([&] { comm.barrier("barrier of step 7"); });
        if (rank == 0) kill(*stopped.operator->(), SIGCONT);
        return text;
      },
      options);
  for (const int r : {0, 2})
    EXPECT_THAT(outcomes[r].text,
                AllOf(HasSubstr("timeout op=barrier of step 7 ranks=1; gen=4"),
                      HasSubstr("barrier of step 7: rank 1 did not arrive within 0.5 s (generation 4)")));
  EXPECT_THAT(outcomes[1].text, HasSubstr("timeout op=barrier of step 7 ranks=1;"));  // told when it wakes up
}

TEST_P(Failures, ATimeoutNamesAllMissingRanks) {
  RankOptions options;
  options.timeout_s = 0.3;
  const auto outcomes = run_on(
      transport(), 4,
      [&](int rank, Communicator& comm) -> std::string {
        if (rank != 0) {
          usleep(900'000);
          return error_of([&] { comm.barrier(); });
        }
        return error_of([&] { comm.all_gather_blobs("x", "save"); });
      },
      options);
  for (const auto& outcome : outcomes)
    EXPECT_THAT(outcome.text, HasSubstr("save: ranks 1, 2, 3 did not arrive within 0.3 s (generation 4)"));
}

TEST_P(Failures, ALatePeerWithinTheLimitIsNoFailureAndIsChargedWithTheWait) {
  const auto outcomes = run_on(transport(), 3, [&](int rank, Communicator& comm) -> std::string {
    comm.barrier();
    const CommStats before = comm.stats();
    if (rank == 1) usleep(150'000);
    comm.barrier();
    const CommStats after = comm.stats();
    if (rank == 1) return "";
    require(after.peer_wait_ns - before.peer_wait_ns > 100'000'000, "the wait is counted");
    require(after.wait_by_peer[1] - before.wait_by_peer[1] > 100'000'000, "and charged to rank 1");
    require(after.wait_by_peer[0] + after.wait_by_peer[2] < 100'000'000, "and to nobody else");
    return "";
  });
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.text, "");
}

TEST_P(Failures, WaitingRanksSleep) {
  const auto outcomes = run_on(transport(), 8, [&](int rank, Communicator& comm) -> std::string {
    SharedMemory memory(4096);
    const Window window = comm.expose(memory, 0, memory.size());
    std::vector<float> sum(16);
    comm.barrier();
    if (rank == 0) {
      usleep(700'000);
      add_all(comm, window, sum, "reduce_scatter").wait();
      return "";
    }
    const auto cpu = [] {
      timespec t;
      clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
      return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
    };
    const double before = cpu();
    const Nanos began = now_ns();
    add_all(comm, window, sum, "reduce_scatter").wait();
    const double share = (cpu() - before) / seconds(now_ns() - began);
    // Threads share one process clock: all eight together, then.
    require(share < 0.05 * (comm.transport() == std::string("inproc") ? 8 : 1),
            "share of a core " + std::to_string(share));
    return "";
  });
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.text, "");
}

TEST_P(Failures, AbortFromAnotherThreadEndsEveryCallEverywhere) {
  const auto outcomes = run_on(transport(), 4, [&](int rank, Communicator& comm) -> std::string {
    SharedMemory memory(4096);
    const Window window = comm.expose(memory, 0, memory.size());
    std::vector<float> sum(16);
    comm.barrier();
    std::thread aborter;
    if (rank == 3)
      aborter = std::thread([&] {
        usleep(200'000);
        comm.abort("a newer generation exists");
      });
    // Rank 0 never comes, so that the others wait: two in a blocking call's place, one on a Work.
    std::string text;
    if (rank == 0) {
      usleep(400'000);
      text = error_of([&] { comm.barrier(); });
    } else {
      const Work work = add_all(comm, window, sum, "reduce_scatter block.0");
      text = error_of([&] { work.wait(); });
      require(work.done(), "a failed Work is over");
      require(error_of([&] { work.wait(); }) == text, "and says so again");
    }
    if (aborter.joinable()) aborter.join();
    return text + " then " + error_of([&] { comm.all_gather_blobs("x"); });
  });
  for (const auto& outcome : outcomes) {
    EXPECT_THAT(
        outcome.text,
        HasSubstr("aborted op=abort ranks= gen=4: aborted by rank 3: a newer generation exists (generation 4)"));
    EXPECT_THAT(outcome.text, HasSubstr("then aborted op=abort"));
  }
}

TEST_P(Failures, AnAbortReachesAReductionUnderWayAtOnce) {
  struct Times {
    std::atomic<Nanos> aborted{0};
    std::atomic<Nanos> ended[3];
  };
  Shared<Times> times;
  const auto outcomes = run_on(transport(), 3, [&](int rank, Communicator& comm) -> std::string {
    SharedMemory memory(std::size_t{48} << 20);
    const Window window = comm.expose(memory, 0, memory.size());
    std::vector<float> sum(memory.size() / sizeof(float));
    comm.barrier();
    std::thread aborter;
    if (rank == 1)
      aborter = std::thread([&] {
        usleep(30'000);
        times->aborted = now_ns();
        comm.abort("enough");
      });
    const std::string text = error_of([&] {
      std::vector<Work> works;
      for (int i = 0; i < 200; ++i) works.push_back(add_all(comm, window, sum, "reduce_scatter block.2"));
      for (const Work& work : works) work.wait();
    });
    times->ended[rank] = now_ns();
    if (aborter.joinable()) aborter.join();
    return text;
  });
  for (int r = 0; r < 3; ++r) {
    EXPECT_THAT(outcomes[r].text, HasSubstr("aborted by rank 1: enough"));
    const double ms = 1e3 * seconds(times->ended[r] - times->aborted);
    RecordProperty("ended_ms_rank_" + std::to_string(r), std::to_string(ms));
    EXPECT_LT(ms, 1000) << r;
  }
}

TEST_P(Failures, ARankThatLeavesWhileOthersNeedItIsNamed) {
  const auto outcomes = run_on(transport(), 4, [&](int rank, Communicator& comm) -> std::string {
    comm.barrier();
    if (rank == 1) {
      usleep(100'000);
      return "left";  // the communicator is dropped with nothing outstanding here
    }
    return error_of([&] { comm.barrier("barrier of step 9"); });
  });
  EXPECT_EQ(outcomes[1].text, "left");
  for (const int r : {0, 2, 3})
    EXPECT_THAT(outcomes[r].text, AllOf(HasSubstr("lost op=barrier of step 9 ranks=1; gen=4"), HasSubstr("left")));
}

TEST_P(Failures, ARankThatThrowsWithWorkUnderWayEndsItForAll) {
  // Borrowed memory outlives the communicator.
  std::vector<SharedMemory> memories;
  for (int r = 0; r < 3; ++r) memories.emplace_back(4096);
  std::vector<std::vector<float>> sums(3, std::vector<float>(16));
  const auto outcomes = run_on(transport(), 3, [&](int rank, Communicator& comm) -> std::string {
    const Window window = comm.expose(memories[rank], 0, memories[rank].size());
    comm.barrier();
    usleep(100'000);
    if (rank == 2) {
      add_all(comm, window, sums[rank], "reduce_scatter block.1");
      throw std::runtime_error("trainer failed");
    }
    return error_of([&] {
      usleep(200'000);
      add_all(comm, window, sums[rank], "reduce_scatter block.1").wait();
      comm.barrier();
    });
  });
  EXPECT_EQ(outcomes[2].text, "error: trainer failed");
  for (const int r : {0, 1})
    EXPECT_THAT(outcomes[r].text, HasSubstr("lost op=reduce_scatter block.1 ranks=2; gen=4: reduce_scatter block.1: "
                                            "rank 2 left the communicator in the middle"));
}

TEST_P(Failures, AnOrdinaryEndDisturbsNobody) {
  std::vector<SharedMemory> memories;
  for (int r = 0; r < 4; ++r) memories.emplace_back(1 << 16);
  for (int turn = 0; turn < 20; ++turn) {
    const auto outcomes = run_on(transport(), 4, [&](int rank, Communicator& comm) -> std::string {
      const Window window = comm.expose(memories[rank], 0, memories[rank].size());
      std::vector<float> sum(1 << 14);
      const Work work = add_all(comm, window, sum, "last reduce_scatter");
      if ((rank + turn) % 4 == 0) usleep(2000);
      work.wait();
      comm.barrier("end");
      return "";
    });
    for (const auto& outcome : outcomes) ASSERT_EQ(outcome.text, "") << "turn " << turn;
  }
}

TEST_P(Failures, DifferentCallsAreAnErrorThatNamesBoth) {
  const auto outcomes = run_on(transport(), 3, [&](int rank, Communicator& comm) -> std::string {
    if (rank == 1)
      return error_of([&] {
        std::vector<double> data(4);
        comm.all_reduce_sum(data, "norm");
      });
    return error_of([&] { comm.barrier("end of step"); });
  });
  for (const auto& outcome : outcomes) {
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("mismatched collectives"), HasSubstr("rank 1"),
                                    HasSubstr("barrier 'end of step'"), HasSubstr("all_reduce 'norm' of 32 B")));
  }
}

TEST_P(Failures, TheSameCallWithOtherArgumentsIsAnError) {
  const auto outcomes = run_on(transport(), 2, [&](int rank, Communicator& comm) -> std::string {
    SharedMemory memory(4096);
    const Window window = comm.expose(memory, 0, memory.size());
    std::vector<float> sum(16);
    return error_of([&] {
      ReduceScatterArgs args;
      args.window = window;
      for (int r = 0; r < 2; ++r) args.pieces.push_back({r, {r, 1}, rank == 1 && r == 0 ? 64u : 0u});
      args.owned = {{0, {0, 16}}, {1, {0, 16}}};
      args.complete = true;
      args.results = {{{0, 2}, sum.data()}};
      comm.reduce_scatter(args).wait();
    });
  });
  for (const auto& outcome : outcomes) EXPECT_THAT(outcome.text, HasSubstr("with other arguments"));
}

TEST_P(Failures, PartsOfUnequalSizesAreAnError) {
  const auto outcomes = run_on(transport(), 2, [&](int rank, Communicator& comm) -> std::string {
    std::vector<std::byte> out(10), in(rank == 0 ? 10 : 11), own(0);
    std::vector<std::span<const std::byte>> send(2);
    std::vector<std::span<std::byte>> receive(2);
    send[1 - rank] = out;
    receive[1 - rank] = in;
    return error_of([&] {
      comm.all_to_all_v(send, receive, "moving state");  // rank 0 has all that it asked for,
      comm.barrier();                                    // and hears of it at the next call
    });
  });
  for (const auto& outcome : outcomes)
    EXPECT_THAT(outcome.text, HasSubstr("moving state: rank 0 sends 10 bytes, rank 1 expects 11"));
}

TEST_P(Failures, WrongArgumentsAreRefusedBeforeAnythingIsSent) {
  const auto outcomes = run_on(transport(), 2, [&](int, Communicator& comm) -> std::string {
    SharedMemory memory(4096);
    const Window window = comm.expose(memory, 0, memory.size());
    std::vector<float> sum(2048);
    const auto refused = [&](const auto& call) {
      try {
        call();
      } catch (const std::invalid_argument& error) {
        return std::string(error.what());
      }
      return std::string("accepted");
    };
    ReduceScatterArgs good;
    good.window = window;
    good.pieces = {{0, {0, 1}, 0}, {1, {1, 1}, 0}};
    good.owned = {{0, {0, 16}}, {1, {0, 16}}};
    good.complete = true;
    good.results = {{{0, 2}, sum.data()}};
    auto bad = good;
    bad.owned = {{0, {0, 1025}}, {1, {0, 1025}}};
    require(refused([&] { comm.reduce_scatter(bad); }).find("4100 bytes of the window of rank 0, which has 4096") !=
                std::string::npos,
            "beyond the window: " + refused([&] { comm.reduce_scatter(bad); }));
    bad = good;
    bad.owned = {{0, {8, 16}}, {0, {0, 4}}, {1, {8, 16}}, {1, {0, 4}}};
    require(refused([&] { comm.reduce_scatter(bad); }) != "accepted", "intervals out of order");
    bad = good;
    bad.results.clear();
    require(refused([&] { comm.reduce_scatter(bad); }) != "accepted", "no place for the result");
    bad = good;
    bad.pieces[1].lanes = {0, 1};
    require(refused([&] { comm.reduce_scatter(bad); }) != "accepted", "lanes twice");
    bad = good;
    bad.window = Window{7};
    require(refused([&] { comm.reduce_scatter(bad); }) != "accepted", "unknown window");
    bad = good;
    bad.dtype = DType::kU8;
    require(refused([&] { comm.reduce_scatter(bad); }) != "accepted", "sum of bytes");
    AllGatherArgs gather;
    gather.window = window;
    gather.owned = {{0, {0, 1000}}, {1, {1000, 1025}}};
    require(refused([&] { comm.all_gather(gather); }) != "accepted", "gather beyond the window");
    require(refused([&] { comm.expose(memory, 4000, 97); }) != "accepted", "window beyond the memory");
    require(refused([&] { comm.broadcast({}, 2); }) != "accepted", "root outside the world");
    require(refused([&] { comm.all_to_all_v({}, {}); }) != "accepted", "too few parts");
    comm.reduce_scatter(good).wait();  // nothing of this has harmed the communicator
    return "";
  });
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.text, "");
}

TEST(Connect, AnUnknownTransportIsRefusedWithTheKnownOnes) {
  SoloBootstrap bootstrap;
  CommOptions options;
  options.transport = "pigeon";
  try {
    connect(World{}, bootstrap, options);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("'pigeon'"), HasSubstr("inproc"), HasSubstr("shm")));
  }
}

TEST(Connect, ARankThatNeverComesIsNamed) {
  InprocBootstrap bootstrap;
  CommOptions options;
  options.connect_timeout_s = 0.2;
  try {
    connect(World{0, 3, 0, 3, 8}, bootstrap, options);
    FAIL() << "connected";
  } catch (const CommError& error) {
    EXPECT_EQ(error.kind(), CommError::Kind::kTimeout);
    EXPECT_EQ(error.ranks(), (std::vector<int>{1, 2}));
    EXPECT_EQ(error.generation(), 8u);
  }
}

}  // namespace
}  // namespace bellows
