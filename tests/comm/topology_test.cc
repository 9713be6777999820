// Topologies: recorded files of machines that are not at hand, this machine, and what is decided from them.
#include "bellows/comm/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "topology/sources.h"

namespace bellows {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string text_of(const std::string& name) {
  std::ifstream in(std::string(BELLOWS_SOURCE_DIR) + "/tests/comm/topologies/" + name + ".json");
  return {std::istreambuf_iterator<char>(in), {}};
}

HostTopology recorded(const std::string& name) {
  return std::move(topology_from_json(text_of(name))).value_or_throw().hosts.at(0);
}

/// `nodes` NUMA nodes, each a socket, of `cores` cores of one processor.
HostTopology plain_host(const std::string& name, int nodes, int cores) {
  HostTopology host{name, name, name + "/pid"};
  for (int n = 0; n < nodes; ++n) {
    host.numa_nodes.push_back({n, n, 1 << 30, {}});
    for (int c = 0; c < cores; ++c) host.numa_nodes.back().cores.push_back({n * cores + c});
  }
  return host;
}

/// `ranks_of[h]` ranks on host h, dealt out in turn or host by host.
Topology world_on(const std::vector<int>& ranks_of, bool in_turn = false) {
  Topology topology;
  std::vector<std::pair<int, int>> places;  // slot, host
  for (std::size_t h = 0; h < ranks_of.size(); ++h) {
    topology.hosts.push_back(plain_host("h" + std::to_string(h), 1, 4));
    for (int slot = 0; slot < ranks_of[h]; ++slot) places.emplace_back(slot, static_cast<int>(h));
  }
  if (in_turn) std::sort(places.begin(), places.end());
  for (const auto& [slot, host] : places) topology.ranks.push_back({host, slot, {}});
  return topology;
}

CpuSet range(int begin, int end) {
  CpuSet cpus;
  for (int cpu = begin; cpu < end; ++cpu) cpus.push_back(cpu);
  return cpus;
}

// ---- Sets of processors ----

TEST(CpuList, IsReadAndWritten) {
  for (const char* text : {"", "0", "0-3", "0-3,8", "1,3,5-7", "65535"})
    EXPECT_EQ(cpu_list(std::move(parse_cpu_list(text)).value_or_throw()), text);
  EXPECT_EQ(parse_cpu_list("0-3,8").value(), (CpuSet{0, 1, 2, 3, 8}));
}

TEST(CpuList, RefusesWhatIsNoList) {
  for (const char* text :
       {",", "0,", "-1", "3-1", "1,1", "0-3,2", "a", "0x1", "1 2", "0-", "65536", "99999999999999999999"})
    EXPECT_FALSE(parse_cpu_list(text).ok()) << text;
}

// ---- Recorded files ----

TEST(RecordedTopology, GivesTheSameBackAfterWriting) {
  for (const char* name : {"dgx_h100", "two_socket_cpu", "four_gpu_pcie"}) {
    Topology topology = std::move(topology_from_json(text_of(name))).value_or_throw();
    topology.ranks = {{0, 1, {0, 1, 5}}, {0, 0, {}}};
    const auto again = topology_from_json(to_json(topology));
    ASSERT_TRUE(again.ok()) << again.error();
    EXPECT_EQ(again.value(), topology) << name;
  }
}

TEST(RecordedTopology, HostileTextsAreRefusedWithThePlace) {
  const std::string good = text_of("four_gpu_pcie");
  const auto error_with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const auto result = topology_from_json(text);
    return result.ok() ? std::string("accepted: ") + to : result.error();
  };
  EXPECT_THAT(error_with("\"version\": 1", "\"version\": 2"), HasSubstr("version: this build reads version 1"));
  EXPECT_THAT(error_with("bellows-topology", "other"), HasSubstr("format: expected"));
  EXPECT_THAT(error_with("\"id\": 1", "\"id\": 0"), HasSubstr("hosts[0].numa_nodes: NUMA node 0 stands twice"));
  EXPECT_THAT(error_with("\"id\": 1", "\"id\": 1.5"), HasSubstr("hosts[0].numa_nodes[1].id: expected a whole number"));
  EXPECT_THAT(error_with("\"id\": 1", "\"id\": -1"), HasSubstr("found -1"));
  EXPECT_THAT(error_with("\"memory_bytes\": ", "\"memory_bytes\": 1e400, \"x\": "), HasSubstr("not JSON"));
  EXPECT_THAT(error_with("\"memory_bytes\": ", "\"memory_bytes\": 18446744073709551615, \"x\": "),
              HasSubstr("numa_nodes[0]"));
  EXPECT_THAT(error_with("[\"0\"", "[\"0-99999999\""), HasSubstr("cores[0]"));
  EXPECT_THAT(error_with("[\"0\"", "[\"\""), HasSubstr("without processors"));
  EXPECT_THAT(error_with("[\"0\"", "[\"47\""), HasSubstr("processor 47 is in two cores"));
  EXPECT_THAT(error_with("\"uuid\"", "\"uuidd\""), HasSubstr("hosts[0].gpus[0]: unknown key 'uuidd'"));
  EXPECT_THAT(error_with("NVIDIA L40S", "\\u001b[31m"), HasSubstr("control characters"));
  EXPECT_THAT(error_with("\"nvlinks\": []", "\"nvlinks\": [[0,1],[1,0]]"), HasSubstr("each of 4 GPUs"));
  EXPECT_THAT(error_with("\"nvlinks\": []", "\"nvlinks\": [[0,1,0,0],[2,0,0,0],[0,0,0,0],[0,0,0,0]]"),
              HasSubstr("do not agree"));
  EXPECT_THAT(error_with("\"rdma\": false", "\"rdma\": 0"), HasSubstr("expected true or false, found 0"));
  EXPECT_THAT(error_with("\"gbps\": 10", "\"gbps\": -1"), HasSubstr("from 0 to"));
  EXPECT_THAT(error_with("\"name\": \"pcie4\"", "\"name\": " + std::string(100000, '[')), HasSubstr("not JSON"));
  for (const char* text : {"", "null", "[]", "{", "{}", "7", "\"x\"", "\xff\xfe"}) {
    const auto result = topology_from_json(text);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_FALSE(result.error().empty());
  }
  for (std::size_t length = 0; length + 2 < good.size(); length += 7)
    EXPECT_FALSE(topology_from_json(good.substr(0, length)).ok()) << length;
}

TEST(RecordedTopology, RanksMustHavePlaces) {
  Topology topology = world_on({2});
  topology.ranks[1].slot = 0;
  EXPECT_THAT(topology_from_json(to_json(topology)).error(), HasSubstr("two ranks in slot 0"));
  topology.ranks[1] = {1, 0, {}};
  EXPECT_THAT(topology_from_json(to_json(topology)).error(), HasSubstr("ranks[1].host"));
}

TEST(RecordedTopology, AMissingFileIsNamed) {
  EXPECT_THAT(load_topology("/nonexistent/topology.json").error(), HasSubstr("/nonexistent/topology.json"));
  EXPECT_FALSE(load_topology("/").ok());
}

// ---- This machine ----

TEST(ThisHost, HasTheProcessorsThatThisProcessMayUse) {
  const HostTopology& host = this_host();
  const CpuSet allowed = allowed_processors();
  ASSERT_FALSE(allowed.empty());
  EXPECT_EQ(intersect(host.processors(), allowed), allowed);
  EXPECT_FALSE(host.machine.empty());
  EXPECT_THAT(host.identity, HasSubstr(host.machine.substr(0, 36)));
  EXPECT_NE(host.identity, host.machine);
  Topology alone;
  alone.hosts = {host};
  const auto again = topology_from_json(to_json(alone));
  ASSERT_TRUE(again.ok()) << again.error();
  EXPECT_EQ(again.value(), alone);
}

TEST(ReadHost, SocketsNodesAndCoresComeFromHwloc) {
  HostSources sources;
  sources.processors = "package:2 numa:2 core:3 pu:2";
  const HostTopology host = read_host(sources);
  EXPECT_EQ(host.package_count(), 2);
  ASSERT_EQ(host.numa_nodes.size(), 4u);
  EXPECT_EQ(host.core_count(), 12);
  EXPECT_EQ(host.processors(), range(0, 24));
  EXPECT_EQ(host.numa_nodes[2].package, 1);
  EXPECT_EQ(host.numa_nodes[2].cores[0], (CpuSet{12, 13}));
}

/// A folder that looks like /sys.
class FakeSysfs : public testing::Test {
 protected:
  FakeSysfs() : root_(fs::temp_directory_path() / ("bellows-sysfs-" + std::to_string(::getpid()))) {
    fs::remove_all(root_);
    fs::create_directories(root_);
    root_ = fs::canonical(root_);
  }
  ~FakeSysfs() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  void link(const std::string& path, const std::string& target) {
    fs::create_directories((root_ / path).parent_path());
    fs::create_directories(root_ / target);
    fs::create_symlink(root_ / target, root_ / path);
  }
  fs::path root_;
};

TEST_F(FakeSysfs, NetworkCardsAreFoundWithTheirPlace) {
  const std::string card = "devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0";
  write(card + "/numa_node", "1");
  write(card + "/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  write(card + "/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)");
  link(card + "/infiniband/mlx5_0/device", card);
  link("class/infiniband/mlx5_0", card + "/infiniband/mlx5_0");
  write(card + "/net/ib0/operstate", "up");
  link(card + "/net/ib0/device", card);
  link("class/net/ib0", card + "/net/ib0");

  const std::string virtio = "devices/pci0000:00/0000:00:03.0";
  write(virtio + "/numa_node", "-1");
  write(virtio + "/virtio2/net/eth0/speed", "-1");
  write(virtio + "/virtio2/net/eth0/operstate", "down");
  link(virtio + "/virtio2/net/eth0/device", virtio + "/virtio2");
  link("class/net/eth0", virtio + "/virtio2/net/eth0");
  link("class/net/lo", "devices/virtual/net/lo");

  const std::vector<Nic> nics = read_nics(root_.string());
  ASSERT_EQ(nics.size(), 2u) << "lo is no device, and the card is one, not two";
  EXPECT_EQ(nics[0], (Nic{"eth0", "eth0", {"0000:00:03.0", "pci0000:00", -1}, false, false, 0}));
  const std::string above = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0";
  EXPECT_EQ(nics[1], (Nic{"mlx5_0", "ib0", {"0000:18:00.0", above, 1}, true, true, 400}));
}

TEST_F(FakeSysfs, ADeviceThatSysfsDoesNotKnowHasItsAddressOnly) {
  EXPECT_EQ(read_pci_place(root_.string(), "0000:01:00.0"), (PciPlace{"0000:01:00.0", "", -1}));
  EXPECT_TRUE(read_nics(root_.string()).empty());
  EXPECT_TRUE(read_nics("/nonexistent").empty());
}

TEST(Nvml, ItsAbsenceIsNoError) { EXPECT_TRUE(read_nvml("libbellows-no-such-library.so.1").empty()); }

TEST(Nvml, ALibraryThatIsNotNvmlGivesNoGpus) { EXPECT_TRUE(read_nvml("libc.so.6").empty()); }

TEST(Nvml, IsReadThroughItsLibrary) {
  const std::vector<NvmlGpu> gpus = read_nvml(BELLOWS_TEST_NVML);
  ASSERT_EQ(gpus.size(), 3u);
  EXPECT_EQ(gpus[0].name, "Test GPU");
  EXPECT_EQ(gpus[1].uuid, "GPU-1");
  EXPECT_EQ(gpus[1].address, "0000:1b:00.0");
  EXPECT_THAT(gpus[1].link_peers, ElementsAre("0000:30:00.0", "0000:1a:00.0", "0000:1a:00.0"));
  EXPECT_EQ(gpus[1].links_to_switches, 1);
  EXPECT_EQ(gpus[2].name, "");
  HostSources sources;
  sources.nvml = BELLOWS_TEST_NVML;
  sources.sysfs = "/nonexistent";
  const HostTopology host = read_host(sources);
  EXPECT_EQ(host.gpus.at(0).place, (PciPlace{"0000:1a:00.0", "", -1}));
  EXPECT_THAT(host.nvlinks, ElementsAre(ElementsAre(0, 3, 0), ElementsAre(3, 0, 0), ElementsAre(0, 0, 0)));
}

TEST(Nvml, LinksAreCountedDirectlyAndThroughSwitches) {
  const NvmlGpu a{"", "", "a", {"b", "b", "c", "x"}, 1}, b{"", "", "b", {"a", "a"}, 0},
      c{"", "", "c", {"a", "x", "x"}, 2};
  const auto links = count_nvlinks({a, b, c});
  EXPECT_THAT(links, ElementsAre(ElementsAre(0, 2, 2), ElementsAre(2, 0, 0), ElementsAre(2, 0, 0)));
  EXPECT_TRUE(count_nvlinks({{"", "", "a", {}, 0}, {"", "", "b", {}, 0}}).empty());
}

TEST(Nvml, AddressesAreWrittenAsSysfsDoes) {
  EXPECT_EQ(sysfs_address("00000000:1B:00.0"), "0000:1b:00.0");
  EXPECT_EQ(sysfs_address("0000:1b:00.0"), "0000:1b:00.0");
  EXPECT_EQ(sysfs_address("00010000:1B:00.0"), "00010000:1b:00.0");
}

// ---- Gathering ----

TEST(MakeTopology, RanksOfAHostShareItAndCountItsSlots) {
  const HostTopology a = plain_host("a", 1, 2), b = plain_host("b", 1, 2);
  const Topology topology =
      make_topology({topology_blob(b, {0}), topology_blob(a, {0, 1}), topology_blob(b, {1}), topology_blob(a, {})});
  EXPECT_THAT(topology.hosts, ElementsAre(b, a));
  EXPECT_THAT(topology.ranks,
              ElementsAre(RankPlace{0, 0, {0}}, RankPlace{1, 0, {0, 1}}, RankPlace{0, 1, {1}}, RankPlace{1, 1, {}}));
}

TEST(MakeTopology, ContainersOfAMachineAreTwoHostsOfOneName) {
  HostTopology a = plain_host("same", 1, 2), b = a;
  b.identity = "same/other-pid";
  const Topology topology = make_topology({topology_blob(a, {}), topology_blob(b, {})});
  EXPECT_EQ(topology.hosts.size(), 2u);
  EXPECT_EQ(topology.hosts[0].machine, topology.hosts[1].machine);
}

TEST(MakeTopology, NamesTheRankWhoseBlobIsNone) {
  const std::string good = topology_blob(plain_host("a", 1, 2), {});
  for (const std::string bad : {"", "garbage", "{}", "{\"host\":{},\"allowed\":\"\"}"}) {
    try {
      make_topology({good, bad});
      ADD_FAILURE() << bad;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1 brought"));
    }
  }
}

// ---- Distances ----

TEST(Distance, OfTheDgxFollowsItsSwitches) {
  const HostTopology host = recorded("dgx_h100");
  ASSERT_EQ(host.gpus.size(), 8u);
  EXPECT_EQ(host.core_count(), 112);
  EXPECT_EQ(nvlinks(host, 0, 7), 18);
  EXPECT_EQ(pci_distance(host, host.gpus[0].place, host.gpus[0].place), PciDistance::kSame);
  EXPECT_EQ(pci_distance(host, host.gpus[0].place, host.gpus[1].place), PciDistance::kSocket);
  EXPECT_EQ(pci_distance(host, host.gpus[0].place, host.gpus[4].place), PciDistance::kSystem);
  std::set<std::string> used;
  for (int gpu = 0; gpu < 8; ++gpu) {
    const Nic& nic = host.nics[static_cast<std::size_t>(nearest_nic(host, gpu).value())];
    const PciPlace& place = host.gpus[static_cast<std::size_t>(gpu)].place;
    EXPECT_EQ(pci_distance(host, place, nic.place), PciDistance::kSwitch);
    EXPECT_EQ(nic.gbps, 400);
    used.insert(nic.name);
  }
  EXPECT_EQ(used.size(), 8u) << "each GPU has a card of its own";
}

TEST(Distance, OfFourGpusOnPcie) {
  const HostTopology host = recorded("four_gpu_pcie");
  EXPECT_EQ(pci_distance(host, host.gpus[0].place, host.gpus[1].place), PciDistance::kSwitch);
  EXPECT_EQ(pci_distance(host, host.gpus[2].place, host.gpus[3].place), PciDistance::kHostBridge);
  EXPECT_EQ(pci_distance(host, host.gpus[1].place, host.gpus[2].place), PciDistance::kSystem);
  EXPECT_EQ(nvlinks(host, 0, 1), 0);
  EXPECT_EQ(nvlinks(host, 0, 9), 0);
}

TEST(NearestNic, PrefersWhatIsUpThenRdmaThenNearThenFast) {
  HostTopology host = recorded("four_gpu_pcie");
  const auto chosen = [&](int gpu) { return host.nics[static_cast<std::size_t>(nearest_nic(host, gpu).value())].name; };
  EXPECT_EQ(chosen(2), "mlx5_0") << "RDMA across sockets before plain Ethernet";
  for (Nic& nic : host.nics) nic.up = !nic.rdma;
  EXPECT_EQ(chosen(2), "eno1");
  host.nics.clear();
  EXPECT_FALSE(nearest_nic(host, 0).has_value());
}

TEST(NearestNic, EqualOnesAreDealtOut) {
  HostTopology host = plain_host("h", 1, 4);
  for (const char* pci : {"0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"})
    host.gpus.push_back({"gpu", pci, {pci, "pci0000:00", 0}});
  for (const char* pci : {"0000:05:00.0", "0000:06:00.0"})
    host.nics.push_back({pci, "", {pci, "pci0000:00", 0}, true, true, 100});
  std::vector<int> chosen;
  for (int gpu = 0; gpu < 4; ++gpu) chosen.push_back(nearest_nic(host, gpu).value());
  EXPECT_THAT(chosen, ElementsAre(0, 1, 0, 1));
}

// ---- Order and partners ----

TEST(RankOrder, HostsFirstThenSocketsThenSlots) {
  Topology topology;
  topology.hosts = {plain_host("a", 2, 2), plain_host("b", 2, 2)};
  topology.ranks = {{1, 0, {2, 3}}, {0, 0, {2}}, {1, 1, {0, 1}}, {0, 1, {0}}, {0, 2, {3}}, {0, 3, {}}};
  EXPECT_THAT(rank_order(topology), ElementsAre(5, 3, 1, 4, 2, 0));
}

TEST(RankOrder, WithoutBindingKeepsTheRanksOfAHostInTheirOrder) {
  EXPECT_THAT(rank_order(world_on({3, 2}, true)), ElementsAre(0, 2, 4, 1, 3));
  EXPECT_THAT(rank_order(Topology{}), ElementsAre());
}

TEST(RankOrder, FollowsTheGpusOfTheSlots) {
  Topology topology;
  topology.hosts = {recorded("four_gpu_pcie")};
  std::swap(topology.hosts[0].gpus[1], topology.hosts[0].gpus[3]);
  for (int slot = 0; slot < 4; ++slot) topology.ranks.push_back({0, slot, {}});
  EXPECT_THAT(rank_order(topology), ElementsAre(0, 3, 2, 1));
}

TEST(PartnerOf, IsOnAnotherHostAndNobodyHasTwoWhereThatCanBe) {
  for (const std::vector<int>& ranks_of :
       std::vector<std::vector<int>>{{1, 1}, {2, 2}, {2, 2, 2}, {3, 2, 1}, {8, 8, 8}, {1, 4, 3}}) {
    for (const bool in_turn : {false, true}) {
      const Topology topology = world_on(ranks_of, in_turn);
      std::set<int> partners;
      for (int rank = 0; rank < static_cast<int>(topology.ranks.size()); ++rank) {
        const int partner = partner_of(topology, rank).value();
        EXPECT_NE(topology.ranks[static_cast<std::size_t>(partner)].host,
                  topology.ranks[static_cast<std::size_t>(rank)].host);
        partners.insert(partner);
      }
      EXPECT_EQ(partners.size(), topology.ranks.size());
    }
  }
}

TEST(PartnerOf, AnotherHostCountsMoreThanAnEvenLoad) {
  const Topology topology = world_on({5, 2});
  for (int rank = 0; rank < 7; ++rank)
    EXPECT_NE(topology.ranks[static_cast<std::size_t>(partner_of(topology, rank).value())].host == 0, rank < 5);
  EXPECT_THAT((std::vector<int>{*partner_of(topology, 0), *partner_of(topology, 1), *partner_of(topology, 2)}),
              ElementsAre(5, 6, 5));
}

TEST(PartnerOf, AnotherMachineCountsMoreThanAnotherContainer) {
  Topology topology = world_on({2, 2, 2, 2});
  topology.hosts[1].machine = topology.hosts[0].machine;
  topology.hosts[3].machine = topology.hosts[2].machine;
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(partner_of(topology, rank).value() / 4, rank < 4 ? 1 : 0) << rank;
  for (HostTopology& host : topology.hosts) host.machine = "one";
  for (int rank = 0; rank < 8; ++rank) EXPECT_NE(partner_of(topology, rank).value() / 2, rank / 2);
}

TEST(PartnerOf, OnOneHostIsAnotherRankAndAloneIsNobody) {
  const Topology topology = world_on({3});
  EXPECT_THAT((std::vector<int>{*partner_of(topology, 0), *partner_of(topology, 1), *partner_of(topology, 2)}),
              ElementsAre(1, 2, 0));
  EXPECT_FALSE(partner_of(world_on({1}), 0).has_value());
}

// ---- Binding ----

TEST(BindPlan, CutsCoresIntoRunsThatMeetAtTheNodes) {
  const HostTopology host = plain_host("h", 2, 5);
  const BindPlan plan = bind_plan(host, 4, host.processors(), BindMode::kCore);
  EXPECT_THAT(plan.slots, ElementsAre(range(0, 2), range(2, 5), range(5, 7), range(7, 10)));
  EXPECT_TRUE(plan.note.empty());
}

TEST(BindPlan, NeverSplitsACoreAndGivesOutAll) {
  const HostTopology host = recorded("two_socket_cpu");
  for (int slots = 1; slots <= 64; ++slots) {
    const BindPlan plan = bind_plan(host, slots, host.processors(), BindMode::kCore);
    std::set<int> given;
    std::size_t total = 0;
    for (const CpuSet& cpus : plan.slots) {
      EXPECT_GE(cpus.size(), 2u);
      for (const int cpu : cpus) EXPECT_TRUE(std::binary_search(cpus.begin(), cpus.end(), (cpu + 64) % 128)) << cpu;
      given.insert(cpus.begin(), cpus.end());
      total += cpus.size();
    }
    EXPECT_EQ(given.size(), 128u);
    EXPECT_EQ(total, 128u) << slots;
  }
}

TEST(BindPlan, MoreRanksThanCoresMayUseAllOfThem) {
  const HostTopology host = plain_host("h", 1, 8);
  for (const BindMode mode : {BindMode::kCore, BindMode::kNuma}) {
    const BindPlan plan = bind_plan(host, 4, {0, 1}, mode);
    EXPECT_THAT(plan.slots, ElementsAre(range(0, 2), range(0, 2), range(0, 2), range(0, 2)));
    EXPECT_THAT(plan.note, HasSubstr("4 ranks on 2 cores"));
    EXPECT_FALSE(plan.failed);
  }
}

TEST(BindPlan, StaysWithinWhatIsAllowed) {
  const HostTopology host = plain_host("h", 2, 4);
  EXPECT_THAT(bind_plan(host, 2, {1, 3, 5, 99}, BindMode::kCore).slots, ElementsAre(CpuSet{1}, CpuSet{3, 5}));
  EXPECT_THAT(bind_plan(host, 2, {1, 3, 5, 99}, BindMode::kNuma).slots, ElementsAre(CpuSet{1, 3}, CpuSet{1, 3, 5}));
}

TEST(BindPlan, WithNothingAllowedSaysSoAndLeavesRanksUnbound) {
  const HostTopology host = plain_host("h", 1, 4);
  for (const CpuSet& allowed : {CpuSet{}, CpuSet{7, 8}}) {
    const BindPlan plan = bind_plan(host, 2, allowed, BindMode::kCore);
    EXPECT_TRUE(plan.failed);
    EXPECT_THAT(plan.slots, ElementsAre(CpuSet{}, CpuSet{}));
    EXPECT_THAT(plan.note, HasSubstr("may use none"));
  }
  EXPECT_THAT(bind_plan(host, 2, host.processors(), BindMode::kNone).slots, ElementsAre(CpuSet{}, CpuSet{}));
}

TEST(BindPlan, ByNumaNodeGivesWholeNodes) {
  const HostTopology host = plain_host("h", 2, 4);
  EXPECT_THAT(bind_plan(host, 3, host.processors(), BindMode::kNuma).slots,
              ElementsAre(range(0, 4), range(0, 8), range(4, 8)));
  EXPECT_THAT(bind_plan(host, 1, host.processors(), BindMode::kNuma).slots, ElementsAre(range(0, 8)));
}

TEST(BindPlan, RanksFollowTheirGpus) {
  const HostTopology dgx = recorded("dgx_h100");
  const BindPlan eight = bind_plan(dgx, 8, dgx.processors(), BindMode::kCore);
  EXPECT_EQ(cpu_list(eight.slots[0]), "0-13,112-125");
  EXPECT_EQ(cpu_list(eight.slots[7]), "98-111,210-223");
  HostTopology pcie = recorded("four_gpu_pcie");
  const BindPlan two = bind_plan(pcie, 2, pcie.processors(), BindMode::kCore);
  EXPECT_EQ(cpu_list(two.slots[1]), "12-23") << "both GPUs are on the first socket";
  EXPECT_EQ(cpu_list(bind_plan(pcie, 4, pcie.processors(), BindMode::kNuma).slots[2]), "24-47");
  // Their node is not allowed: an even cut instead.
  EXPECT_EQ(cpu_list(bind_plan(pcie, 2, range(24, 48), BindMode::kCore).slots[1]), "36-47");
}

TEST(AutomaticBind, OnlyWhereItCanNotHurt) {
  const HostTopology two = plain_host("h", 2, 4), laptop = plain_host("l", 1, 8);
  EXPECT_EQ(automatic_bind(two, 4, two.processors(), true), BindMode::kNuma);
  EXPECT_EQ(automatic_bind(two, 4, two.processors(), false), BindMode::kNone)
      << "a lone rank would have its share only";
  EXPECT_EQ(automatic_bind(two, 1, two.processors(), true), BindMode::kNone);
  EXPECT_EQ(automatic_bind(two, 9, two.processors(), true), BindMode::kNone);
  EXPECT_EQ(automatic_bind(two, 4, range(0, 4), true), BindMode::kNone) << "one node is allowed";
  EXPECT_EQ(automatic_bind(laptop, 4, laptop.processors(), true), BindMode::kNone);
  const HostTopology pcie = recorded("four_gpu_pcie");
  EXPECT_EQ(automatic_bind(pcie, 2, pcie.processors(), true), BindMode::kNone) << "a socket would stay idle";
  EXPECT_EQ(automatic_bind(pcie, 4, pcie.processors(), true), BindMode::kNuma);
}

// ---- Pictures ----

TEST(Picture, ShowsEverythingOnce) {
  const std::string text = picture(recorded("dgx_h100"));
  EXPECT_THAT(text, HasSubstr("dgx: 2 packages, 2 NUMA nodes, 112 cores, 8 GPUs, 13 NICs\n"));
  EXPECT_THAT(text, HasSubstr("56 cores of 2 threads: 0-55,112-167\n"));
  EXPECT_THAT(text, HasSubstr("GPU 7  NVIDIA H100 80GB HBM3  0000:df:00.0  -> mlx5_11 (PCI switch)\n"));
  EXPECT_THAT(text, HasSubstr("NV18"));
  EXPECT_THAT(picture(recorded("two_socket_cpu")), Not(HasSubstr("GPU to GPU")));
  EXPECT_THAT(picture(recorded("four_gpu_pcie")), HasSubstr("switch"));
}

TEST(Picture, ShowsDevicesWhoseNodeIsUnknown) {
  HostTopology host = plain_host("h", 1, 2);
  host.nics.push_back({"eth0", "eth0", {"0000:00:03.0", "pci0000:00", -1}, false, true, 0});
  EXPECT_THAT(picture(host), HasSubstr("└─ NIC eth0  0000:00:03.0  speed unknown\n"));
}

TEST(Picture, OfRanksHasALineForEach) {
  Topology topology = world_on({1, 1});
  topology.ranks[1].allowed = {0, 1};
  const std::string text = picture_of_ranks(topology);
  EXPECT_THAT(text, HasSubstr("rank 0    h0    slot 0  not bound\n"));
  EXPECT_THAT(text, HasSubstr("rank 1    h1    slot 0  processors 0-1\n"));
}

}  // namespace
}  // namespace bellows
