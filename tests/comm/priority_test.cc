#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "bellows/base/error.h"
#include "bellows/comm/communicator.h"
#include "group.h"
#include "ranks.h"

namespace bellows {
namespace {

/// Ranks at the level of numbered calls, so that a test can hold a call while it is being carried out.
std::shared_ptr<Group> connect_group(const std::string& transport, const World& world, Bootstrap& bootstrap,
                                     double timeout_s) {
  const auto segment = std::make_shared<SharedMemory>(Control::kSegmentBytes);
  new (segment->data()) Control;
  Introduction self = introduce_this_process();
  self.wanted = transport;
  self.cores = "3";
  self.fd = segment->fd();
  self.inode = inode_of(segment->fd());
  self.token = publish_segment(segment);
  std::vector<Introduction> ranks;
  for (const std::string& blob : bootstrap.exchange(world, "connect", self.encode(), Deadline::after(20)))
    ranks.push_back(Introduction::decode(blob));
  auto reach = transport == "shm" ? make_shm_reach(world, ranks, segment) : make_inproc_reach(world, ranks, segment);
  return std::make_shared<Group>(world, std::move(reach), segment, timeout_s, false);
}

std::shared_ptr<Call> make_call(const char* what, int priority, std::function<void()> body) {
  auto call = std::make_shared<Call>();
  call->what = what;
  call->priority = priority;
  call->on_all_arrived = std::move(body);
  return call;
}

void run_groups(int world_size, const std::function<void(Group&)>& body) {
  InprocBootstrap bootstrap;
  std::vector<std::thread> ranks;
  std::vector<std::string> errors(world_size);
  for (int r = 0; r < world_size; ++r)
    ranks.emplace_back([&, r] {
      try {
        const auto group = connect_group("inproc", World{r, world_size, r, world_size, 1}, bootstrap, 20);
        group->run(make_call("connect", 0, nullptr));
        body(*group);
        group->run(make_call("end", 0, nullptr));
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
    });
  for (auto& rank : ranks) rank.join();
  for (int r = 0; r < world_size; ++r) EXPECT_EQ(errors[r], "") << "rank " << r;
}

void wait_until(const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::after(10);
  while (!condition()) {
    require(!deadline.passed(), "what a call waits for happens");
    std::this_thread::yield();
  }
}

bool everybody_posted(Group& group, Sequence sequence) {
  for (int r = 0; r < group.world().world_size; ++r)
    if (!(r == group.world().rank ? group.own() : group.peer(r)).has_posted(sequence)) return false;
  return true;
}

TEST(Priority, AnUrgentCallIsServedInTheMiddleOfALongOne) {
  run_groups(3, [](Group& group) {
    std::atomic<bool> submitted{false}, served{false}, inside{false};
    const auto urgent = make_call("urgent", 1, [&] { served = true; });
    const auto fold = make_call("fold", 0, [&] {
      wait_until([&] { return submitted.load(); });
      wait_until([&] {
        group.between_stretches();
        return served.load();
      });
      inside = true;
    });
    group.submit(fold, true);
    group.submit(urgent, true);
    submitted = true;
    group.wait_done(urgent);
    group.wait_done(fold);
    require(inside, "the long call went on after the urgent one");
  });
}

TEST(Priority, UrgentCallsOvertakeQueuedOnesAndKeepTheirOwnOrder) {
  run_groups(3, [](Group& group) {
    std::vector<std::string> order;  // only the driver of the moment writes
    std::atomic<bool> begun{false};
    std::atomic<Sequence> last{0};
    const auto note = [&](const char* what) { return [&order, what] { order.push_back(what); }; };
    const std::vector<std::shared_ptr<Call>> calls = {
        make_call("fold", 0,
                  [&] {
                    begun = true;
                    wait_until([&] { return last != 0 && everybody_posted(group, last); });
                    order.push_back("fold");
                  }),
        make_call("a", 0, note("a")),
        make_call("urgent b", 1, note("urgent b")),
        make_call("c", 0, note("c")),
        make_call("urgent d", 1, note("urgent d")),
        make_call("more urgent e", 2, note("more urgent e"))};
    for (const auto& call : calls) {
      group.submit(call, true);
      wait_until([&] { return begun.load(); });
    }
    last = calls.back()->sequence;
    for (const auto& call : calls) group.wait_done(call);
    const std::vector<std::string> expected = {"fold", "more urgent e", "urgent b", "urgent d", "a", "c"};
    std::string got;
    for (const auto& what : order) got += what + ", ";
    require(order == expected, "the order of priorities, not " + got);
  });
}

TEST(Priority, AnUrgentCallThatSomebodyHasYetToAnnounceHoldsNobodyUp) {
  run_groups(2, [](Group& group) {
    std::atomic<bool> done{false};
    const auto urgent = make_call("urgent", 1, nullptr);
    const auto ordinary = make_call("ordinary", 0, [&] { done = true; });
    group.submit(ordinary, true);
    if (group.world().rank == 0) group.submit(urgent, true);
    wait_until([&] { return done.load(); });  // here, although rank 1 announces the urgent one only now
    if (group.world().rank == 1) group.submit(urgent, true);
    group.wait_done(urgent);
    group.wait_done(ordinary);
  });
}

TEST(Priority, ManyMixedCallsEndWithTheRightSums) {
  for (const std::string transport : {"inproc", "shm"})
    for (const int world_size : {2, 4}) {
      const auto outcomes = run_on(transport, world_size, [](int rank, Communicator& comm) {
        const int n = comm.world().world_size;
        constexpr int kCalls = 700;  // more than announcements fit into the ring
        constexpr std::size_t kCount = 64;
        SharedMemory memory(kCalls * kCount * sizeof(float));
        const Window window = comm.expose(memory, 0, memory.size());
        std::vector<std::vector<float>> sums(kCalls, std::vector<float>(kCount));
        std::vector<Work> works;
        for (int c = 0; c < kCalls; ++c) {
          float* const mine = memory.as<float>().data() + c * kCount;
          for (std::size_t i = 0; i < kCount; ++i) mine[i] = static_cast<float>(rank + c);
          ReduceScatterArgs args;
          args.window = window;
          for (int r = 0; r < n; ++r) {
            args.pieces.push_back({r, {r, 1}, c * kCount * sizeof(float)});
            args.owned.push_back({r, {0, kCount}});
          }
          args.complete = true;
          args.results = {{{0, n}, sums[c].data()}};
          args.priority = c % 7 == 0 ? 2 : c % 3 == 0 ? 1 : 0;
          works.push_back(comm.reduce_scatter(args));
          if (c % 40 == 0) works[c / 2].wait();
        }
        for (int c = 0; c < kCalls; ++c) {
          works[c].wait();
          for (const float sum : sums[c])
            require(sum == static_cast<float>(n * (n - 1) / 2 + n * c), "sum of call " + std::to_string(c));
        }
        return "";
      });
      for (int r = 0; r < world_size; ++r) EXPECT_EQ(outcomes[r].text, "") << transport << " rank " << r;
    }
}

TEST(Priority, MustBeTheSameOnEveryRank) {
  const auto outcomes = run_on("inproc", 2, [](int rank, Communicator& comm) {
    SharedMemory memory(4096);
    AllGatherArgs args;
    args.window = comm.expose(memory, 0, 4096);
    args.owned = {{0, {0, 10}}};
    args.priority = rank;
    comm.all_gather(args).wait();
    return "";
  });
  for (const Outcome& outcome : outcomes) EXPECT_NE(outcome.text.find("mismatched collectives"), std::string::npos);
}

// Whoever is stopped while it writes into others' memory would go on with it whenever it is continued: in a later
// generation, that is.
TEST(Fence, EndsAPeerThatWasStoppedInTheMiddleOfWritingHere) {
  ForkedBootstrap bootstrap;
  Shared<std::atomic<int>> dropped;
  pid_t children[2];
  for (int rank = 0; rank < 2; ++rank) {
    children[rank] = fork();
    if (children[rank] != 0) continue;
    try {
      const auto group = connect_group("shm", World{rank, 2, rank, 2, 1}, bootstrap, 0.2);
      auto call = make_call("write", 0, [&] {
        if (rank == 1) raise(SIGSTOP);
      });
      call->writes_windows = true;
      try {
        group->submit(call, true);
        group->wait_done(call);
      } catch (const CommError&) {
      }
      group->close();
      *dropped.operator->() = 1;
    } catch (const std::exception&) {
      _exit(3);
    }
    _exit(0);
  }
  const Deadline patience = Deadline::after(20);
  int status[2] = {0, 0};
  bool ended[2] = {false, false};
  while (!(ended[0] && ended[1]) && !patience.passed()) {
    for (int r = 0; r < 2; ++r)
      if (!ended[r] && waitpid(children[r], &status[r], WNOHANG) == children[r]) ended[r] = true;
    usleep(1000);
  }
  for (int r = 0; r < 2; ++r)
    if (!ended[r]) kill(children[r], SIGKILL), waitpid(children[r], &status[r], 0);
  EXPECT_TRUE(ended[0] && ended[1]);
  EXPECT_TRUE(WIFEXITED(status[0]) && WEXITSTATUS(status[0]) == 0);
  EXPECT_TRUE(WIFSIGNALED(status[1]) && WTERMSIG(status[1]) == SIGKILL);
  EXPECT_EQ(dropped->load(), 1);
}

}  // namespace
}  // namespace bellows
