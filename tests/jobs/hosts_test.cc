// Several hosts for real: network namespaces joined by a switch and slowed down like a 1 Gbit/s network, each with a
// process namespace of its own, so that nothing but the network leads from one to the other.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/if_arp.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "training.h"

namespace bellows::testing_tools {
namespace {

using testing::HasSubstr;

bool shell(const std::string& command) { return std::system((command + " > /dev/null 2>&1").c_str()) == 0; }

/// Network namespaces h0, h1, … with addresses 10.77.0.1, .2, … joined by a bridge in one of their own. Gone at the
/// end.
class Hosts {
 public:
  explicit Hosts(int count) : prefix_("bw" + std::to_string(getpid())) {
    made_ = shell("ip netns add " + name(-1)) && shell(in(-1) + "ip link add br0 type bridge") &&
            shell(in(-1) + "ip link set br0 up");
    for (int h = 0; made_ && h < count; ++h) {
      const std::string port = "p" + std::to_string(h);
      made_ = shell("ip netns add " + name(h)) &&
              shell("ip link add eth0 netns " + name(h) + " type veth peer name " + port + " netns " + name(-1)) &&
              shell(in(h) + "ip addr add " + address(h) + "/24 dev eth0") && shell(in(h) + "ip link set eth0 up") &&
              shell(in(h) + "ip link set lo up") && shell(in(-1) + "ip link set " + port + " master br0") &&
              shell(in(-1) + "ip link set " + port + " up") &&
              (shell(in(h) + "tc qdisc add dev eth0 root netem rate 1gbit delay 0.2ms") ||
               shell(in(h) + "tc qdisc add dev eth0 root tbf rate 1gbit burst 128kb latency 100ms"));
      ++count_;
    }
  }
  ~Hosts() {
    for (int h = -1; h < count_; ++h) shell("ip netns del " + name(h));
  }
  Hosts(const Hosts&) = delete;

  bool made() const { return made_; }
  std::string address(int h) const { return "10.77.0." + std::to_string(h + 1); }
  /// Words in front of a command that is to run on a host, in a process namespace of its own.
  std::vector<std::string> on(int h) const {
    return {"ip", "netns", "exec", name(h), "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"};
  }
  std::string namespace_file(int h) const { return "/run/netns/" + name(h); }

 private:
  std::string name(int h) const { return prefix_ + (h < 0 ? "s" : "h" + std::to_string(h)); }
  std::string in(int h) const { return "ip netns exec " + name(h) + " "; }

  const std::string prefix_;
  bool made_ = false;
  int count_ = 0;
};

/// Adds up the TCP payload that leaves a host: what the interface itself counts has headers and acknowledgements in it.
class PayloadCounter {
 public:
  explicit PayloadCounter(const std::string& namespace_file) {
    std::thread opener([&] {  // the socket belongs to the namespace in which it was made
      const int where = ::open(namespace_file.c_str(), O_RDONLY | O_CLOEXEC);
      if (where < 0 || ::setns(where, CLONE_NEWNET) != 0) return;
      ::close(where);
      socket_ = ::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_ALL));
    });
    opener.join();
    if (socket_ < 0) return;
    const int room = 512 << 20;
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    sock_filter first_bytes[] = {{BPF_RET | BPF_K, 0, 0, 128}};
    const sock_fprog program{1, first_bytes};
    ::setsockopt(socket_, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
    reader_ = std::thread([this] { read(); });
  }
  ~PayloadCounter() {
    stop_ = true;
    if (reader_.joinable()) reader_.join();
    if (socket_ >= 0) ::close(socket_);
  }
  bool works() const { return socket_ >= 0; }
  double bytes() const { return static_cast<double>(bytes_); }

 private:
  void read() {
    unsigned char packet[128];
    while (!stop_) {
      pollfd event{socket_, POLLIN, 0};
      if (::poll(&event, 1, 50) <= 0) continue;
      sockaddr_ll from{};
      socklen_t size = sizeof from;
      const ssize_t n = ::recvfrom(socket_, packet, sizeof packet, 0, reinterpret_cast<sockaddr*>(&from), &size);
      if (n < 40 || from.sll_pkttype != PACKET_OUTGOING || packet[0] >> 4 != 4 || packet[9] != IPPROTO_TCP) continue;
      if (from.sll_hatype == ARPHRD_LOOPBACK) continue;
      const int head = (packet[0] & 15) * 4;
      const int total = packet[2] << 8 | packet[3];
      const int payload = total - head - (packet[head + 12] >> 4) * 4;
      if (payload <= 0) continue;
      // What is sent again, because a queue was full, is counted once.
      std::uint32_t sequence = 0;
      std::memcpy(&sequence, packet + head + 4, 4);
      const std::uint32_t end = ntohl(sequence) + static_cast<std::uint32_t>(payload);
      const auto [it, fresh] = ends_.try_emplace(
          std::string(reinterpret_cast<char*>(packet) + 12, 8) + std::string(reinterpret_cast<char*>(packet) + head, 4),
          end);
      const auto advance = static_cast<std::int32_t>(end - it->second);
      if (fresh) bytes_ += payload;
      if (!fresh && advance > 0) bytes_ += advance, it->second = end;
    }
  }

  int socket_ = -1;
  std::atomic<bool> stop_ = false;
  std::atomic<long> bytes_ = 0;
  std::map<std::string, std::uint32_t> ends_;  // of what has been sent, by connection
  std::thread reader_;
};

std::string why_not() {
  if (geteuid() != 0) return "not covered: several hosts (making network namespaces needs root)";
  for (const char* tool : {"ip", "tc", "unshare"})
    if (!shell(std::string("command -v ") + tool))
      return std::string("not covered: several hosts (there is no ") + tool + ")";
  if (!std::filesystem::exists(std::string(BELLOWS_BIN_DIR) + "/../lib/libbellows_ucx.so"))
    return "not covered: several hosts (UCX was not found when this was built)";
  return "";
}

/// A job of `hosts` x 2 ranks: a coordinator on the first host, an agent on each.
class JobOnHosts {
 public:
  JobOnHosts(const Hosts& hosts, int count, Training training, const std::vector<std::string>& coordinator_flags = {})
      : folder_(fresh_folder()) {
    environment_ = {{"XDG_RUNTIME_DIR", folder_},
                    {"BELLOWS_TOKEN", "secret"},
                    {"BELLOWS_PEAK_F32", "1e11"},
                    {"BELLOWS_PEAK_BF16", "1e11"}};
    std::vector<std::string> words = hosts.on(0);
    const std::vector<std::string> coordinator = {std::string(BELLOWS_BIN_DIR) + "/bellows",
                                                  "coordinator",
                                                  "--job",
                                                  "j",
                                                  "--bind",
                                                  hosts.address(0),
                                                  "-n",
                                                  std::to_string(2 * count)};
    words.insert(words.end(), coordinator.begin(), coordinator.end());
    words.insert(words.end(), coordinator_flags.begin(), coordinator_flags.end());
    boss_ = std::make_unique<Process>(words, environment_);
    const std::string note = folder_ + "/bellows/j.json";
    EXPECT_TRUE(eventually([&] { return nlohmann::json::parse(contents(note), nullptr, false).contains("address"); }))
        << boss_->err();
    const std::string address = nlohmann::json::parse(contents(note)).at("address");
    for (int h = 0; h < count; ++h) {
      training.launcher = hosts.on(h);
      const std::vector<std::string> agent = {std::string(BELLOWS_BIN_DIR) + "/bellows",
                                              "agent",
                                              "--coordinator",
                                              address,
                                              "--host",
                                              "host" + std::to_string(h),
                                              "--slots",
                                              "2"};
      training.launcher.insert(training.launcher.end(), agent.begin(), agent.end());
      agents_.push_back(std::make_unique<Process>(command_of(training, folder_), environment_));
    }
  }
  Metrics metrics() const { return read_metrics(folder_ + "/metrics.jsonl"); }
  Metrics end(const std::string& what) {
    EXPECT_EQ(boss_->wait(120), 0) << what << boss_->err();
    for (auto& agent : agents_) EXPECT_EQ(agent->wait(20), 0) << what << agent->err();
    return metrics();
  }
  std::string said() const { return boss_->err(); }
  std::vector<pid_t> processes_of_host(int h) const { return agents_[h]->living_offspring(); }

 private:
  const std::string folder_;
  std::map<std::string, std::string> environment_;
  std::unique_ptr<Process> boss_;
  std::vector<std::unique_ptr<Process>> agents_;
};

std::string command_line(pid_t pid) {
  std::string text = contents("/proc/" + std::to_string(pid) + "/cmdline");
  for (char& c : text)
    if (c == '\0') c = ' ';
  return text;
}

class SeveralHosts : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_not(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(SeveralHosts, GiveTheNumbersOfOneProcess) {
  for (const int count : {2, 3}) {
    const Hosts hosts(count);
    if (!hosts.made()) GTEST_SKIP() << "not covered: several hosts (this kernel or container lets nobody make them)";
    for (const int stage : {0, 1, 2, 3}) {
      if (count == 3 && stage != 2 && !std::getenv("BELLOWS_TEST_FULL")) continue;
      Training training;
      training.stage = stage;
      if (count == 3) training.more = {"--lanes", "6", "--global-batch", "12"};
      JobOnHosts job(hosts, count, training);
      const std::string what = std::to_string(count) + " hosts, stage " + std::to_string(stage) + ": ";
      const Metrics metrics = job.end(what);
      if (count == 2) {
        expect_same(metrics, undisturbed(training.steps, training.precision), what);
      } else {
        training.stage = 0;
        expect_same(metrics, run_to_end(training), what);
      }
    }
  }
}

// Each host folds what its ranks have before anything leaves it, and takes in each parameter once: per step every host
// sends 4 bytes for each gradient that the other owns and for each parameter that it owns itself, both together 8 bytes
// for every parameter. (Both together, because at the end rank 0 collects the state, wherever it is.)
TEST_F(SeveralHosts, SendEachByteOncePerHost) {
  const Hosts hosts(2);
  if (!hosts.made()) GTEST_SKIP() << "not covered: several hosts (this kernel or container lets nobody make them)";
  std::map<int, double> sent;
  // GPT-2 with a byte vocabulary, tied: tables, two blocks of 12 d^2 + 13 d, the last norm.
  const double d = 128, parameters = 256 * d + 32 * d + 2 * (12 * d * d + 13 * d) + 2 * d;
  for (const int steps : {10, 40}) {
    Training training;
    training.steps = steps;
    training.more = {"--dim", "128", "--sample", "0", "--eval-every", "0"};
    const PayloadCounter first(hosts.namespace_file(0)), second(hosts.namespace_file(1));
    if (!first.works() || !second.works())
      GTEST_SKIP() << "not covered: bytes between hosts (packets cannot be counted here)";
    JobOnHosts job(hosts, 2, training);
    const Metrics metrics = job.end(std::to_string(steps) + " steps: ");
    sent[steps] = first.bytes() + second.bytes();
    ASSERT_EQ(metrics.last_step(), steps);
  }
  const double per_step = (sent[40] - sent[10]) / 30, expected = 8 * parameters;
  RecordProperty("bytes_per_step", std::to_string(per_step));
  RecordProperty("expected", std::to_string(expected));
  EXPECT_NEAR(per_step / expected, 1, 0.02) << per_step << " bytes a step, " << expected << " by the formula";
}

TEST_F(SeveralHosts, LoseARankOfAnotherHostAndGoOn) {
  const Hosts hosts(2);
  if (!hosts.made()) GTEST_SKIP() << "not covered: several hosts (this kernel or container lets nobody make them)";
  Training training;
  training.steps = 60;
  training.more = {"--sample", "0"};
  training.environment = {};
  JobOnHosts job(hosts, 2, training, {"--min", "2", "--max", "4", "--policy", "manual"});
  ASSERT_TRUE(eventually([&] { return job.metrics().last_step() >= 10; })) << job.said();
  pid_t victim = 0;
  for (const pid_t pid : job.processes_of_host(1))
    if (command_line(pid).rfind(std::string(BELLOWS_BIN_DIR) + "/gpt-train", 0) == 0) victim = pid;
  ASSERT_GT(victim, 0);
  ASSERT_EQ(::kill(victim, SIGKILL), 0);
  const Metrics metrics = job.end("one rank killed: ");
  EXPECT_THAT(job.said(), HasSubstr("was killed by signal 9"));
  expect_same(metrics, undisturbed(60, "fp32"), "a rank of another host killed: " + job.said());
}

}  // namespace
}  // namespace bellows::testing_tools
