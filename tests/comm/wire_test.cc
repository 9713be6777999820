// One suite for every wire, with ranks as threads of one process and as processes. Whatever a wire loads, it loads in
// children: the process of the tests stays clean, and a row's environment is its own.
#include "routed/wire.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/prctl.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "bellows/base/clock.h"
#include "ranks.h"
#include "routed/wire_ucx.h"

namespace bellows {
namespace {

struct WireRow {
  const char* name;
  std::string (*obstacle)();
  std::unique_ptr<Wire> (*make)(const World&);
  std::vector<std::pair<const char*, const char*>> environment;
  const char* described;
  bool tells_death;  ///< passes on that a peer was killed
};
const std::vector<WireRow> kRows = {
    {"ucx_tcp", ucx_obstacle, make_ucx_wire, {{"UCX_TLS", "tcp"}}, "ucx (tcp", true},
    {"ucx_shared_memory", ucx_obstacle, make_ucx_wire, {{"UCX_TLS", "posix,sysv"}}, "memory)", false},
};

using WireBody = std::function<void(int rank, Wire& wire)>;
constexpr double kPatience = 30;  // seconds after which a test gives up on what should have happened

void finish(Wire& wire, const Transfer& transfer, bool may_fail = false) {
  const Deadline deadline = Deadline::after(kPatience);
  while (transfer.state == Transfer::kPending) {
    require(!deadline.passed(), "a transfer ends");
    if (!wire.progress()) wire.wait(2'000'000, {});
  }
  require(may_fail || transfer.state == Transfer::kDone, "a transfer succeeds, not: " + transfer.error);
}
void finish_all(Wire& wire, const std::vector<Transfer>& transfers) {
  for (const Transfer& transfer : transfers) finish(wire, transfer);
}

/// Bytes that are different for every seed.
std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed) {
  std::vector<std::byte> bytes(size);
  std::uint64_t x = seed * 0x9E3779B97F4A7C15u + 1;
  for (std::size_t i = 0; i < size; ++i) {
    if (i % 8 == 0) x = x * 6364136223846793005u + 1442695040888963407u;
    bytes[i] = static_cast<std::byte>(x >> (8 * (i % 8)));
  }
  return bytes;
}

void meet(Wire& wire, int me, int world_size, std::uint32_t call) {
  const std::byte token{1};
  std::vector<std::byte> got(world_size);
  std::vector<Transfer> transfers(2 * world_size);
  for (int r = 0; r < world_size; ++r)
    if (r != me) {
      wire.receive(r, {call, 60000}, std::span(got).subspan(r, 1), transfers[2 * r]);
      wire.send(r, {call, 60000}, {&token, 1}, transfers[2 * r + 1]);
    }
  for (const Transfer& transfer : transfers)
    if (transfer.state != Transfer::kIdle) finish(wire, transfer);
}

struct Crew {
  std::vector<std::string> errors;  // by rank; empty: its body came to its end
  std::vector<int> signals;         // that ended its process
};

struct Reports {
  char text[16][1024];
  std::atomic<bool> over[16];
};

/// Runs `body` on connected ranks.
Crew run_wires(const WireRow& row, bool threads, int world_size, const WireBody& body) {
  Shared<Reports> reports;
  ForkedBootstrap bootstrap;
  const auto rank_body = [&](int rank, Bootstrap& meeting) {
    std::string text;
    try {
      const World world{rank, world_size, rank, world_size, 3};
      auto wire = row.make(world);
      wire->connect(meeting.exchange(world, "wires", wire->address(), Deadline::after(kPatience)));
      try {
        body(rank, *wire);
      } catch (...) {
        (void)wire.release();  // the memory of its transfers has gone with the body
        throw;
      }
    } catch (const std::exception& error) {
      text = std::string("error: ") + error.what();
    }
    std::strncpy(reports->text[rank], text.c_str(), sizeof reports->text[rank] - 1);
    reports->over[rank] = true;
  };
  std::vector<pid_t> children;
  for (int child = 0; child < (threads ? 1 : world_size); ++child) {
    const pid_t pid = fork();
    if (pid != 0) {
      children.push_back(pid);
      continue;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (const auto& [name, value] : row.environment) setenv(name, value, 1);
    if (threads) {
      InprocBootstrap inproc;
      std::vector<std::thread> ranks;
      for (int r = 0; r < world_size; ++r) ranks.emplace_back([&, r] { rank_body(r, inproc); });
      for (auto& rank : ranks) rank.join();
    } else {
      rank_body(child, bootstrap);
    }
    _exit(0);
  }
  Crew crew;
  crew.errors.resize(world_size);
  crew.signals.resize(world_size);
  const Deadline patience = Deadline::after(2 * kPatience);
  for (std::size_t child = 0; child < children.size(); ++child) {
    int status = 0;
    while (waitpid(children[child], &status, WNOHANG) == 0) {
      if (patience.passed()) kill(children[child], SIGKILL);
      usleep(1000);
    }
    if (WIFSIGNALED(status)) crew.signals[child] = WTERMSIG(status);
  }
  for (int r = 0; r < world_size; ++r)
    crew.errors[r] = reports->over[r] ? reports->text[r] : "error: did not come to its end";
  return crew;
}

/// What runs without ranks: the row's environment, in a child. Returns what `body` does.
std::string in_child(const WireRow& row, const std::function<std::string()>& body) {
  Shared<Reports> reports;
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (const auto& [name, value] : row.environment) setenv(name, value, 1);
    std::string text;
    try {
      text = body();
    } catch (const std::exception& error) {
      text = std::string("error: ") + error.what();
    }
    std::strncpy(reports->text[0], text.c_str(), sizeof reports->text[0] - 1);
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? reports->text[0] : "error: ended by a signal";
}

class OneWire : public testing::Test {
 protected:
  explicit OneWire(int row) : row_(kRows[static_cast<std::size_t>(row)]) {}
  void SetUp() override {
    const std::string why = in_child(row_, row_.obstacle);
    ASSERT_FALSE(why.starts_with("error: ")) << why;
    if (!why.empty()) GTEST_SKIP() << why;
  }
  const WireRow& row_;
};

/// By row, and whether ranks are threads.
class Wires : public OneWire, public testing::WithParamInterface<std::tuple<int, bool>> {
 protected:
  Wires() : OneWire(std::get<0>(GetParam())) {}
  void run(int world_size, const WireBody& body) {
    for (const std::string& error : run_wires(row_, std::get<1>(GetParam()), world_size, body).errors)
      EXPECT_EQ(error, "");
  }
};
const auto kAllRows = testing::Range(0, static_cast<int>(kRows.size()));
INSTANTIATE_TEST_SUITE_P(All, Wires, testing::Combine(kAllRows, testing::Bool()), [](const auto& info) {
  return std::string(kRows[std::get<0>(info.param)].name) + (std::get<1>(info.param) ? "_threads" : "_processes");
});

/// What takes processes: killing them, and looking at what one of them holds.
class WireProcesses : public OneWire, public testing::WithParamInterface<int> {
 protected:
  WireProcesses() : OneWire(GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(All, WireProcesses, kAllRows,
                         [](const auto& info) { return std::string(kRows[info.param].name); });

constexpr std::size_t kSizes[] = {0, 1, 7, 64 << 10, (1 << 20) + 1, 16 << 20};

TEST_P(Wires, CarryEverySizeBetweenAllPairsAtOnce) {
  constexpr int kRanks = 3;
  run(kRanks, [](int me, Wire& wire) {
    std::uint32_t call = 0;
    for (const std::size_t size : kSizes) {
      ++call;
      std::vector<std::vector<std::byte>> outgoing, incoming(kRanks, std::vector<std::byte>(size));
      for (int r = 0; r < kRanks; ++r) outgoing.push_back(pattern(size, 10 * me + r + 1));
      std::vector<Transfer> sent(kRanks), received(kRanks);
      for (int r = 0; r < kRanks; ++r) {
        if (r == me) continue;
        wire.receive(r, {call, 5}, incoming[r], received[r]);
        wire.send(r, {call, 5}, outgoing[r], sent[r]);
      }
      for (int r = 0; r < kRanks; ++r) {
        if (r == me) continue;
        finish(wire, received[r]);
        require(size == 0 || std::equal(incoming[r].begin(), incoming[r].end(), received[r].data),
                "the data is where the transfer says");
        require(incoming[r] == pattern(size, 10 * r + me + 1),
                std::to_string(size) + " bytes arrive as they were sent");
        wire.release(r, received[r]);
        finish(wire, sent[r]);
      }
    }
  });
}

TEST_P(Wires, CarryRememberedMemory) {
  run(2, [](int me, Wire& wire) {
    constexpr std::size_t kSize = 3 << 20;
    HostMemory memory(2 * kSize);
    wire.remember(memory.bytes());
    for (std::uint32_t call = 1; call <= 3; ++call) {
      const auto mine = pattern(kSize, 100 * me + call), theirs = pattern(kSize, 100 * (1 - me) + call);
      std::copy(mine.begin(), mine.end(), memory.data());
      std::vector<Transfer> transfers(2);
      wire.receive(1 - me, {call, 0}, memory.bytes().subspan(kSize), transfers[0]);
      wire.send(1 - me, {call, 0}, memory.bytes().first(kSize), transfers[1]);
      finish_all(wire, transfers);
      require(std::equal(theirs.begin(), theirs.end(), transfers[0].data), "remembered memory is received into");
      wire.release(1 - me, transfers[0]);
    }
    wire.forget(memory.bytes());
  });
}

TEST_P(Wires, MatchByTagWhateverTheOrder) {
  run(2, [](int me, Wire& wire) {
    constexpr int kMessages = 300;
    const std::size_t lengths[] = {0, 3, 200, 9000, 40000};
    std::vector<int> order(kMessages);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(7 + me));
    std::vector<std::vector<std::byte>> memory(kMessages);
    std::vector<Transfer> transfers(kMessages);
    // Tags that differ in one field only, also in its highest bit.
    const auto tag = [](int m) {
      return WireTag{m % 2 ? 0x80000000u + m / 4 : m / 4u, static_cast<std::uint16_t>(m % 4 < 2 ? 0 : 0x8000)};
    };
    for (const int m : order) {
      memory[m] = me == 0 ? pattern(lengths[m % 5], m) : std::vector<std::byte>(lengths[m % 5]);
      if (me == 0)
        wire.send(1, tag(m), memory[m], transfers[m]);
      else
        wire.receive(0, tag(m), memory[m], transfers[m]);
    }
    finish_all(wire, transfers);
    for (int m = 0; me == 1 && m < kMessages; ++m)
      require(memory[m] == pattern(lengths[m % 5], m), "message " + std::to_string(m) + " is the one of its tag");
  });
}

TEST_P(Wires, TellSendersApart) {
  run(3, [](int me, Wire& wire) {
    const auto mine = pattern(5000, me);
    if (me != 0) {
      Transfer sent;
      wire.send(0, {1, 1}, mine, sent);
      finish(wire, sent);
      return meet(wire, me, 3, 2);
    }
    std::vector<std::byte> got[3] = {{}, std::vector<std::byte>(5000), std::vector<std::byte>(5000)};
    std::vector<Transfer> transfers(2);
    wire.receive(2, {1, 1}, got[2], transfers[0]);
    finish(wire, transfers[0]);
    wire.receive(1, {1, 1}, got[1], transfers[1]);
    finish(wire, transfers[1]);
    require(got[1] == pattern(5000, 1) && got[2] == pattern(5000, 2), "each from whom it was asked");
    meet(wire, me, 3, 2);
  });
}

TEST_P(Wires, KeepMessagesUntilTheirReceive) {
  run(2, [](int me, Wire& wire) {
    const std::size_t sizes[] = {5, 5000, 2 << 20};
    if (me == 0) {
      std::vector<std::vector<std::byte>> data;
      std::vector<Transfer> sent(3);
      for (int m = 0; m < 3; ++m) data.push_back(pattern(sizes[m], m));
      for (int m = 0; m < 3; ++m) wire.send(1, {1, static_cast<std::uint16_t>(m)}, data[m], sent[m]);
      Transfer last;
      wire.send(1, {2, 0}, {}, last);
      finish(wire, last);
      finish_all(wire, sent);
      return;
    }
    Transfer last;
    wire.receive(0, {2, 0}, {}, last);
    finish(wire, last);  // by then the others are here too
    for (int m = 2; m >= 0; --m) {
      std::vector<std::byte> place(sizes[m]);
      Transfer received;
      wire.receive(0, {1, static_cast<std::uint16_t>(m)}, place, received);
      finish(wire, received);
      require(place == pattern(sizes[m], m), "message " + std::to_string(m) + " was kept");
    }
  });
}

TEST_P(Wires, FailAMessageOfAnotherSizeAndGoOn) {
  run(2, [](int me, Wire& wire) {
    std::uint32_t call = 0;
    for (const std::size_t size : {std::size_t{100}, std::size_t{3} << 20})
      for (const std::size_t expected : {size - 1, size + 1}) {
        ++call;
        std::vector<std::byte> data = pattern(size, call), place(expected);
        Transfer transfer;
        if (me == 0)
          wire.send(1, {call, 0}, data, transfer);
        else
          wire.receive(0, {call, 0}, place, transfer);
        finish(wire, transfer, /*may_fail=*/true);
        if (me == 1) {
          require(transfer.state == Transfer::kFailed, "another size fails");
          require(transfer.error.find("rank 0") != std::string::npos, "with the name of the sender: " + transfer.error);
        }
        meet(wire, me, 2, 100 + call);
      }
  });
}

TEST_P(Wires, SleepUntilAMessageADescriptorOrAWake) {
  run(2, [](int me, Wire& wire) {
    constexpr Nanos kLong = 20'000'000'000;
    meet(wire, me, 2, 1);
    if (me == 1) {
      // The peer sleeps by now, or will find the message before it does.
      usleep(50'000);
      const std::byte token{7};
      Transfer sent;
      wire.send(0, {2, 0}, {&token, 1}, sent);
      finish(wire, sent);
      return meet(wire, me, 2, 3);
    }
    std::byte token{0};
    Transfer received;
    wire.receive(1, {2, 0}, {&token, 1}, received);
    const Nanos start = now_ns();
    while (received.state == Transfer::kPending)
      if (!wire.progress()) wire.wait(kLong, {});
    require(token == std::byte{7} && now_ns() - start < kLong, "a message ends the sleep");
    meet(wire, me, 2, 3);

    // Sleeps until `ended`; what the network has to do meanwhile ends single waits.
    const auto sleep_until = [&](const std::function<bool()>& ended, std::span<const int> also, const char* what) {
      const Nanos began = now_ns();
      while (!ended()) {
        while (wire.progress()) {
        }
        wire.wait(kLong, also);
        require(now_ns() - began < kLong, what);
      }
    };
    std::atomic<bool> woken{false};
    std::thread waker([&] {
      usleep(50'000);
      woken = true;
      wire.wake();
    });
    sleep_until([&] { return woken.load(); }, {}, "a wake ends the sleep");
    waker.join();
    wire.wake();
    const Nanos began = now_ns();
    wire.wait(kLong, {});
    require(now_ns() - began < kLong, "a wake before the sleep ends it too");

    int ends[2];
    require(pipe(ends) == 0, "a pipe");
    std::atomic<bool> written{false};
    std::thread writer([&] {
      usleep(50'000);
      written = true;
      require(write(ends[1], "x", 1) == 1, "written");
    });
    sleep_until([&] { return written.load(); }, std::span(ends, 1), "a descriptor ends the sleep");
    writer.join();
    close(ends[0]);
    close(ends[1]);
    const Nanos brief = now_ns();
    wire.wait(1'000'000, {});
    require(now_ns() - brief < kLong, "the limit ends it");
  });
}

/// Starts what a dead or deaf peer never answers, gives up, and watches that the memory is left alone.
void give_up_on(Wire& wire, int peer) {
  std::vector<std::byte> large = pattern(16 << 20, 1), place(8 << 20), small(64);
  std::vector<Transfer> transfers(4);
  wire.receive(peer, {7, 1}, place, transfers[0]);
  wire.receive(peer, {7, 2}, small, transfers[1]);
  wire.send(peer, {7, 3}, large, transfers[2]);
  wire.send(peer, {7, 4}, small, transfers[3]);
  for (int i = 0; i < 20; ++i)
    if (!wire.progress()) wire.wait(1'000'000, {});
  const Nanos start = now_ns();
  wire.cancel_all();
  require(now_ns() - start < from_seconds(10),
          "giving up takes about a second, not " + std::to_string(seconds(now_ns() - start)));
  for (int t = 0; t < 3; ++t) require(transfers[t].state == Transfer::kFailed, "what was under way has failed");
  require(!transfers[0].error.empty(), "with a reason");
  require(transfers[3].state != Transfer::kPending, "nothing stays pending");
  std::fill(place.begin(), place.end(), std::byte{42});
  wire.progress();
  wire.wait(20'000'000, {});
  require(std::count(place.begin(), place.end(), std::byte{42}) == 8 << 20, "memory is left alone");
  Transfer late;
  wire.send(peer, {8, 1}, small, late);
  require(late.state == Transfer::kFailed, "nothing can be sent afterwards");
  wire.receive(peer, {8, 1}, small, late);
  require(late.state == Transfer::kFailed, "nor received");
}

TEST_P(Wires, GiveUpOnAPeerThatDoesNotAnswer) {
  Shared<std::atomic<bool>> given_up;
  run(2, [&](int me, Wire& wire) {
    meet(wire, me, 2, 1);
    if (me == 1) {
      while (!*given_up.operator->()) usleep(1000);
      return;
    }
    give_up_on(wire, 1);
    *given_up.operator->() = true;
  });
}

TEST_P(Wires, GiveUpOnAPeerThatWasNeverHeardOf) {
  Shared<std::atomic<bool>> given_up;
  run(2, [&](int me, Wire& wire) {
    if (me == 1) {
      while (!*given_up.operator->()) usleep(1000);
      return;
    }
    give_up_on(wire, 1);
    *given_up.operator->() = true;
  });
}

TEST_P(WireProcesses, GiveUpOnAKilledPeer) {
  const Crew crew = run_wires(row_, false, 2, [](int me, Wire& wire) {
    meet(wire, me, 2, 1);
    if (me == 1) raise(SIGKILL);
    usleep(100'000);
    give_up_on(wire, 1);
  });
  EXPECT_EQ(crew.errors[0], "");
  EXPECT_EQ(crew.signals[1], SIGKILL);
}

TEST_P(WireProcesses, EndWithoutHangingWhenAPeerIsKilledInTheMiddleOfAMessage) {
  std::vector<std::byte> memory(32 << 20);  // these two outlive the wire
  Transfer transfer;
  const Crew crew = run_wires(row_, false, 2, [&](int me, Wire& wire) {
    meet(wire, me, 2, 1);
    if (me == 1) {
      wire.receive(0, {2, 0}, memory, transfer);
      for (int moves = 0; moves < 20;) moves += wire.progress() ? 1 : 0;
      raise(SIGKILL);
    }
    wire.send(1, {2, 0}, memory, transfer);
    const Deadline moment = Deadline::after(0.3);
    while (!moment.passed())
      if (!wire.progress()) wire.wait(10'000'000, {});
    // Dropped with the message under way.
  });
  EXPECT_EQ(crew.errors[0], "");
  EXPECT_EQ(crew.signals[1], SIGKILL);
}

TEST_P(WireProcesses, LoseOnlyThePeerThatDied) {
  const bool told = row_.tells_death;
  const Crew crew = run_wires(row_, false, 3, [told](int me, Wire& wire) {
    meet(wire, me, 3, 1);
    if (me == 2) raise(SIGKILL);
    std::vector<std::byte> place(100);
    Transfer never;
    wire.receive(2, {2, 0}, place, never);
    if (told) {
      finish(wire, never, /*may_fail=*/true);
      require(never.state == Transfer::kFailed && never.error.find("rank 2") != std::string::npos,
              "its receive fails with its name: " + never.error);
    }
    std::vector<std::byte> data = pattern(1 << 20, me), got(1 << 20);
    std::vector<Transfer> transfers(2);
    wire.send(1 - me, {3, 0}, data, transfers[0]);
    wire.receive(1 - me, {3, 0}, got, transfers[1]);
    finish_all(wire, transfers);
    require(got == pattern(1 << 20, 1 - me), "the others carry on");
    wire.cancel_all();
  });
  EXPECT_EQ(crew.errors[0], "");
  EXPECT_EQ(crew.errors[1], "");
}

TEST_P(Wires, DeliverWhatWasSentBeforeTheSenderLeft) {
  Shared<std::atomic<bool>> gone;
  run(2, [&](int me, Wire& wire) {
    constexpr int kMessages = 50;
    std::vector<std::vector<std::byte>> data(kMessages);
    std::vector<Transfer> transfers(kMessages);
    meet(wire, me, 2, 1);
    if (me == 0) {
      for (int m = 0; m < kMessages; ++m) {
        data[m] = pattern(1000, m);
        wire.send(1, {2, static_cast<std::uint16_t>(m)}, data[m], transfers[m]);
      }
      finish_all(wire, transfers);
      return;
    }
    usleep(100'000);  // rank 0 has gone, or is going
    for (int m = 0; m < kMessages; ++m) {
      data[m].resize(1000);
      wire.receive(0, {2, static_cast<std::uint16_t>(m)}, data[m], transfers[m]);
    }
    finish_all(wire, transfers);
    for (int m = 0; m < kMessages; ++m) require(data[m] == pattern(1000, m), "message " + std::to_string(m) + " came");
  });
}

TEST_P(Wires, ServeAWorldOfOne) {
  run(1, [](int, Wire& wire) {
    wire.progress();
    wire.wake();
    wire.wait(1'000'000, {});
    Transfer transfer;
    wire.send(1, {1, 1}, {}, transfer);
    require(transfer.state == Transfer::kFailed, "there is nobody to send to");
  });
}

TEST_P(Wires, SayWhatTheyUse) {
  const std::string described = row_.described;
  run(2, [&](int me, Wire& wire) {
    meet(wire, me, 2, 1);
    require(wire.describe().find(described) != std::string::npos, described + " is in: " + wire.describe());
  });
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // what is freed stays mapped for a while
#else
constexpr bool kSanitized = false;
#endif

struct Held {
  std::size_t descriptors, threads, mapped_kib, allocated_kib;
};
Held held() {
  const auto entries = [](const char* folder) {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()));
  };
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto heap = mallinfo2();
  return {entries("/proc/self/fd"), entries("/proc/self/task"), pages * 4, (heap.uordblks + heap.hblkhd) / 1024};
}

TEST_P(WireProcesses, AHundredGenerationsLeaveNothing) {
  ForkedBootstrap meetings;
  const Crew crew = run_wires(row_, false, 2, [&](int me, Wire&) {
    Held before = {};
    constexpr int kWarm = 10, kAll = 110;
    for (int generation = 1; generation <= kAll; ++generation) {
      const World world{me, 2, me, 2, static_cast<std::uint64_t>(generation)};
      auto wire = row_.make(world);
      wire->connect(meetings.exchange(world, "again", wire->address(), Deadline::after(kPatience)));
      std::vector<std::byte> data(100'000), place(100'000);
      wire->remember(data);
      std::vector<Transfer> transfers(2);
      wire->receive(1 - me, {1, 0}, place, transfers[0]);
      wire->send(1 - me, {1, 0}, data, transfers[1]);
      finish_all(*wire, transfers);
      meet(*wire, me, 2, 2);
      wire.reset();
      if (generation == kWarm) before = held();
    }
    const Held after = held();
    require(after.descriptors == before.descriptors,
            "descriptors: " + std::to_string(before.descriptors) + ", then " + std::to_string(after.descriptors));
    require(after.threads == before.threads,
            "threads: " + std::to_string(before.threads) + ", then " + std::to_string(after.threads));
    if (kSanitized) return;
    require(after.mapped_kib < before.mapped_kib + 4096,
            "KiB mapped: " + std::to_string(before.mapped_kib) + ", then " + std::to_string(after.mapped_kib));
    require(after.allocated_kib < before.allocated_kib + 200,
            "KiB allocated: " + std::to_string(before.allocated_kib) + ", then " + std::to_string(after.allocated_kib));
  });
  for (const std::string& error : crew.errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace bellows
