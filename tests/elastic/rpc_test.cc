// Members and coordinator over real gRPC on the loopback.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "bellows/base/error.h"
#include "bellows/elastic/coordinator.h"
#include "bellows/elastic/job_client.h"
#include "bellows/elastic/member.h"

namespace bellows {
namespace {

using testing::HasSubstr;

constexpr double kPatience = 30;  // seconds; a hang fails, a slow machine does not

JobConfig job(int ranks, int min_ranks, int max_ranks, int budget = 10) {
  JobConfig config;
  config.name = "rpc-test";
  config.ranks = ranks;
  config.min_ranks = min_ranks;
  config.max_ranks = max_ranks;
  config.policy.name = "manual";
  config.failure_budget = budget;
  config.suspect_s = 0.5;
  return config;
}

CoordinatorOptions with_token(const std::string& token = "secret", int port = 0) {
  CoordinatorOptions options;
  options.token = token;
  options.port = port;
  return options;
}

std::unique_ptr<Member> member_of(const Coordinator& coordinator, const std::string& id = "",
                                  const std::string& token = "secret") {
  MemberOptions options;
  options.coordinator = coordinator.address();
  options.token = token;
  options.id = id;
  options.host = "here";
  options.heartbeat_s = 0.05;
  return make_coordinated_member(options);
}

JoinInfo info(const std::string& fingerprint = "f", int lanes = 8) { return {fingerprint, lanes}; }

template <class Condition>
bool eventually(Condition condition) {
  const Deadline deadline = Deadline::after(kPatience);
  while (!condition()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

void commit(Member& member, const Membership& membership, std::int64_t step = 1) {
  StepReport report;
  report.generation = membership.generation;
  report.step = step;
  report.rank = membership.world_of(member.id())->rank;
  member.report(report);
}

/// Brings `count` members into generation 1.
std::vector<std::unique_ptr<Member>> form(const Coordinator& coordinator, int count) {
  std::vector<std::unique_ptr<Member>> members;
  for (int i = 0; i < count; ++i) {
    members.push_back(member_of(coordinator));
    members.back()->join(info());
  }
  for (auto& member : members) {
    const auto membership = member->await_membership(0, Deadline::after(kPatience));
    EXPECT_TRUE(membership);
    commit(*member, *membership);
  }
  EXPECT_TRUE(eventually([&] { return coordinator.status().settled; }));
  return members;
}

TEST(Rpc, FormsAWorldExchangesAndFinishes) {
  Coordinator coordinator(job(3, 3, 3), with_token());
  std::vector<std::future<std::vector<std::string>>> ranks;
  for (int i = 0; i < 3; ++i) {
    ranks.push_back(std::async(std::launch::async, [&] {
      const auto member = member_of(coordinator);
      member->join(info());
      const auto membership = member->await_membership(0, Deadline::after(kPatience));
      const World world = *membership->world_of(member->id());
      const std::string mine = "rank " + std::to_string(world.rank);
      auto blobs = member->bootstrap().exchange(world, "main", mine, Deadline::after(kPatience));
      member->leave(true);
      return blobs;
    }));
  }
  for (auto& rank : ranks) EXPECT_THAT(rank.get(), testing::ElementsAre("rank 0", "rank 1", "rank 2"));
  const auto outcome = coordinator.wait(Deadline::after(kPatience));
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->exit_code, 0);
}

TEST(Rpc, ExchangeNamesTheRanksThatDidNotCome) {
  Coordinator coordinator(job(3, 1, 3), with_token());
  const auto members = form(coordinator, 3);
  World world = *members[0]->await_membership(0, Deadline::after(kPatience))->world_of(members[0]->id());
  try {
    members[0]->bootstrap().exchange(world, "main", "x", Deadline::after(0.2));
    FAIL() << "two ranks are missing";
  } catch (const CommError& error) {
    EXPECT_EQ(error.kind(), CommError::Kind::kTimeout);
    EXPECT_THAT(error.ranks(), testing::ElementsAre(1, 2));
  }
}

TEST(Rpc, AnnouncesAGrowAndALossWithinMilliseconds) {
  Coordinator coordinator(job(2, 1, 3), with_token());
  auto members = form(coordinator, 2);
  std::atomic<std::uint64_t> aborted = 0;
  members[0]->on_abort([&](std::uint64_t generation, const std::string&) { aborted = generation; });

  JobClient client(coordinator.address(), "secret");
  ASSERT_TRUE(client.scale(3));
  members.push_back(member_of(coordinator));
  members[2]->join(info());
  ASSERT_TRUE(eventually([&] { return members[0]->newest_generation() == 2; }));
  for (auto& member : members) {
    const auto membership = member->await_membership(member == members[2] ? 0 : 1, Deadline::after(kPatience));
    ASSERT_TRUE(membership);
    EXPECT_EQ(membership->world_size(), 3);
    commit(*member, *membership);
  }
  ASSERT_TRUE(eventually([&] { return coordinator.status().settled; }));
  EXPECT_EQ(aborted, 0u) << "a planned change aborts nothing";

  members.pop_back();  // gone without a word: its connection breaks
  ASSERT_TRUE(eventually([&] { return aborted == 2u; }));
  const auto next = members[0]->await_membership(2, Deadline::after(kPatience));
  ASSERT_TRUE(next);
  EXPECT_EQ(next->world_size(), 2);
  EXPECT_FALSE(next->planned);
}

TEST(Rpc, AnAbortThatCameBeforeAnybodyListenedIsNotLost) {
  Coordinator coordinator(job(2, 1, 2), with_token());
  auto members = form(coordinator, 2);
  members[0]->report_failure(1, {1}, "gone");
  ASSERT_TRUE(eventually([&] { return coordinator.status().phase == "recovering"; }));
  std::atomic<std::uint64_t> aborted = 0;
  ASSERT_TRUE(eventually([&] {
    members[0]->on_abort([&](std::uint64_t generation, const std::string&) { aborted = generation; });
    return aborted == 1u;
  }));
  members[0]->on_abort(nullptr);
}

TEST(Rpc, AwaitEndsWithNothingWhenTheJobIsOver) {
  Coordinator coordinator(job(2, 2, 2, 0), with_token());
  auto members = form(coordinator, 2);
  auto waiting =
      std::async(std::launch::async, [&] { return members[0]->await_membership(1, Deadline::after(kPatience)); });
  coordinator.kill("enough", 130);
  EXPECT_FALSE(waiting.get());
}

TEST(Rpc, AwaitThrowsWhenItsDeadlinePasses) {
  Coordinator coordinator(job(2, 2, 2), with_token());
  const auto member = member_of(coordinator);
  member->join(info());
  EXPECT_THROW((void)member->await_membership(0, Deadline::after(0.1)), CommError);
}

TEST(Rpc, StopReachesEveryRank) {
  Coordinator coordinator(job(2, 1, 2), with_token());
  auto members = form(coordinator, 2);
  JobClient client(coordinator.address(), "secret");
  ASSERT_TRUE(client.stop("by a test"));
  EXPECT_TRUE(eventually([&] { return members[0]->stop_requested() && members[1]->stop_requested(); }));
  for (auto& member : members) member->leave(true);
  EXPECT_EQ(coordinator.wait(Deadline::after(kPatience))->exit_code, 0);
}

TEST(Rpc, WindowsAndChangesOfRankZeroArrive) {
  JobConfig config = job(2, 1, 2);
  config.policy.name = "mfu-threshold";
  config.policy.threshold = 0.5;
  config.policy.windows = 1;
  Coordinator coordinator(config, with_token());
  auto members = form(coordinator, 2);
  MfuWindow window;
  window.generation = 1;
  window.mfu = 0.1;
  window.valid = true;
  members[0]->report(window);
  members[0]->report(ChangeReport{1, 0, 2, "formed", 123, 4.5});
  EXPECT_TRUE(eventually([&] { return coordinator.status().generation == 2; }));
  bool told = false;
  for (const Event& e : coordinator.events(0, Deadline::after(0)))
    told = told || (e.kind == "world" && e.bytes_moved == 123 && e.ms == 4.5);
  EXPECT_TRUE(told);
}

// ---- bad callers

TEST(Rpc, AWrongTokenIsRefusedEverywhereAndTheJobGoesOn) {
  Coordinator coordinator(job(2, 1, 2), with_token());
  auto members = form(coordinator, 2);
  for (const std::string& token : {std::string(""), std::string("secres"), std::string("secret2")}) {
    try {
      member_of(coordinator, "m1", token)->join(info());
      FAIL() << "token '" << token << "'";
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("token"));
    }
    JobClient client(coordinator.address(), token);
    EXPECT_FALSE(client.scale(1));
    EXPECT_FALSE(client.drain("here"));
    EXPECT_FALSE(client.stop("forged"));
    EXPECT_FALSE(client.status());
    EXPECT_FALSE(client.events(0, 0));
    AgentClient agent(coordinator.address(), token, "evil", "here", 100);
    EXPECT_FALSE(agent.poll("", {}));
    EXPECT_FALSE(agent.report({"m1", 0, 9, ""}));
  }
  EXPECT_EQ(coordinator.status().world_size, 2);
  EXPECT_FALSE(members[0]->stop_requested());
  EXPECT_TRUE(coordinator.status().settled);
}

TEST(Rpc, ADifferentFingerprintIsRefusedWithBothNamed) {
  Coordinator coordinator(job(2, 1, 2), with_token());
  const auto members = form(coordinator, 2);
  try {
    member_of(coordinator)->join(info("another"));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("\"another\""));
    EXPECT_THAT(error.what(), HasSubstr("\"f\""));
  }
}

/// A plain TCP connection to the coordinator.
class RawPeer {
 public:
  explicit RawPeer(const std::string& address) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    ::inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
    timeval limit{2, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  ~RawPeer() { ::close(fd_); }
  bool connected() const { return connected_; }
  void send(const std::string& bytes) { (void)!::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }

 private:
  int fd_;
  bool connected_ = false;
};

TEST(Rpc, GarbageOversizedLengthsAndSlowPeersDoNotHarm) {
  Coordinator coordinator(job(2, 1, 2), with_token());
  auto members = form(coordinator, 2);
  std::vector<std::unique_ptr<RawPeer>> peers;
  for (int i = 0; i < 20; ++i) {
    peers.push_back(std::make_unique<RawPeer>(coordinator.address()));
    ASSERT_TRUE(peers.back()->connected());
  }
  std::string garbage(1 << 16, '\0');
  for (std::size_t i = 0; i < garbage.size(); ++i) garbage[i] = static_cast<char>(i * 2654435761u >> 13);
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (i % 4 == 0) peers[i]->send(garbage);
    if (i % 4 == 1) peers[i]->send("GET / HTTP/1.1\r\n\r\n");
    // A proper preface, then a frame that claims to be 16 MiB long.
    if (i % 4 == 2)
      peers[i]->send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string("\xff\xff\xff\x00\x00\x00\x00\x00\x01", 9));
    if (i % 4 == 3) peers[i]->send("P");  // and nothing more
  }
  for (int i = 0; i < 5; ++i) {
    for (std::size_t p = 3; p < peers.size(); p += 4) peers[p]->send("R");
    JobClient client(coordinator.address(), "secret");
    ASSERT_TRUE(client.status());
  }
  // A message above the limit, with the right token, is refused; the sender may go on.
  JobClient client(coordinator.address(), "secret");
  EXPECT_FALSE(client.stop(std::string(8 << 20, 'x')));
  EXPECT_TRUE(client.status());
  EXPECT_FALSE(members[0]->stop_requested());
  EXPECT_EQ(coordinator.status().world_size, 2);
}

// ---- ports

TEST(Rpc, ABusyPortIsAnErrorThatNamesIt) {
  const Coordinator first(job(1, 1, 1), with_token());
  const std::string port = first.address().substr(first.address().rfind(':') + 1);
  try {
    const Coordinator second(job(1, 1, 1), with_token("secret", std::stoi(port)));
    FAIL() << "two coordinators on one port";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr(port));
  }
}

TEST(Rpc, ListensWhereItIsToldAndNowhereElse) {
  Coordinator loopback(job(1, 1, 1), with_token());
  EXPECT_THAT(loopback.address(), testing::StartsWith("127.0.0.1:"));
  CoordinatorOptions other = with_token();
  other.bind = "127.0.0.2";
  Coordinator second(job(1, 1, 1), other);
  EXPECT_THAT(second.address(), testing::StartsWith("127.0.0.2:"));
  EXPECT_FALSE(RawPeer(second.address()).connected()) << "127.0.0.1 was not asked for";
  JobClient client(second.address(), "secret");
  EXPECT_TRUE(client.status());
  CoordinatorOptions foreign = with_token();
  foreign.bind = "203.0.113.7";  // documentation address: not this machine's
  EXPECT_THROW(Coordinator(job(1, 1, 1), foreign), UserError);
}

TEST(Rpc, WorksOverIPv6) {
  CoordinatorOptions options = with_token();
  options.bind = "::1";
  std::unique_ptr<Coordinator> coordinator;
  try {
    coordinator = std::make_unique<Coordinator>(job(1, 1, 1), options);
  } catch (const UserError&) {
    GTEST_SKIP() << "this host has no IPv6 loopback";
  }
  EXPECT_THAT(coordinator->address(), testing::StartsWith("[::1]:"));
  const auto members = form(*coordinator, 1);
  EXPECT_EQ(coordinator->status().world_size, 1);
}

TEST(Rpc, NobodyAtTheAddressIsSaidByName) {
  JobClient client("127.0.0.1:1", "secret");
  const auto status = client.status();
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error(), HasSubstr("127.0.0.1:1"));
}

// ---- a coordinator that dies

TEST(Rpc, RanksOutliveTheirCoordinatorAndFindItsSuccessor) {
  auto coordinator = std::make_unique<Coordinator>(job(2, 1, 3), with_token());
  const int port = std::stoi(coordinator->address().substr(coordinator->address().rfind(':') + 1));
  auto members = form(*coordinator, 2);
  coordinator.reset();

  // Nothing that a step needs blocks or fails.
  for (int step = 2; step < 50; ++step) {
    for (auto& member : members) {
      StepReport report;
      report.generation = 1;
      report.step = step;
      member->report(report);
      EXPECT_EQ(member->newest_generation(), 1u);
      EXPECT_FALSE(member->stop_requested());
    }
  }
  JobConfig config = job(1, 1, 3);  // whatever it is told, the ranks know better
  config.id_prefix = "next-";
  coordinator = std::make_unique<Coordinator>(config, with_token("secret", port));
  ASSERT_TRUE(eventually([&] {
    const JobStatus status = coordinator->status();
    return status.generation == 1 && status.world_size == 2 && status.settled;
  }));
  EXPECT_EQ(coordinator->status().wanted, 2);
  // The new one steers them.
  JobClient client(coordinator->address(), "secret");
  ASSERT_TRUE(client.scale(1));
  ASSERT_TRUE(eventually([&] { return members[0]->newest_generation() == 2; }));
  const auto shrunk = members[0]->await_membership(1, Deadline::after(kPatience));
  ASSERT_TRUE(shrunk);
  EXPECT_EQ(shrunk->world_size(), 1);
  EXPECT_EQ(shrunk->leaving.size(), 1u);
}

}  // namespace
}  // namespace bellows
