// What follows from a topology: distances, order, partners, processors. Pure functions.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "bellows/base/check.h"
#include "bellows/comm/topology.h"

namespace bellows {

CpuSet HostTopology::processors() const {
  CpuSet all;
  for (const NumaNode& node : numa_nodes)
    for (const CpuSet& core : node.cores) all.insert(all.end(), core.begin(), core.end());
  std::sort(all.begin(), all.end());
  return all;
}

int HostTopology::core_count() const {
  std::size_t count = 0;
  for (const NumaNode& node : numa_nodes) count += node.cores.size();
  return static_cast<int>(count);
}

int HostTopology::package_count() const {
  std::set<int> packages;
  for (const NumaNode& node : numa_nodes) packages.insert(node.package);
  return static_cast<int>(packages.size());
}

namespace {

const NumaNode* node_of(const HostTopology& host, int id) {
  for (const NumaNode& node : host.numa_nodes)
    if (node.id == id) return &node;
  return nullptr;
}

}  // namespace

// ---- Distances ----

const char* name_of(PciDistance distance) {
  switch (distance) {
    case PciDistance::kSame:
      return "same device";
    case PciDistance::kSwitch:
      return "PCI switch";
    case PciDistance::kHostBridge:
      return "host bridge";
    case PciDistance::kSocket:
      return "same socket";
    case PciDistance::kSystem:
      break;
  }
  return "across sockets";
}

PciDistance pci_distance(const HostTopology& host, const PciPlace& a, const PciPlace& b) {
  if (!a.address.empty() && a.address == b.address) return PciDistance::kSame;
  const auto host_bridge = [](const PciPlace& place) { return place.path.substr(0, place.path.find('/')); };
  if (!a.path.empty() && host_bridge(a) == host_bridge(b)) {
    // The second bridge of a path is a port of the processor: what two devices share from there on is a switch.
    const auto port = [](const PciPlace& place) {
      const std::size_t first = place.path.find('/');
      return first == std::string::npos ? ""
                                        : place.path.substr(first + 1, place.path.find('/', first + 1) - first - 1);
    };
    return !port(a).empty() && port(a) == port(b) ? PciDistance::kSwitch : PciDistance::kHostBridge;
  }
  const NumaNode *node_a = node_of(host, a.numa_node), *node_b = node_of(host, b.numa_node);
  if (host.package_count() <= 1 && !host.numa_nodes.empty()) return PciDistance::kSocket;
  return node_a && node_b && node_a->package == node_b->package ? PciDistance::kSocket : PciDistance::kSystem;
}

int nvlinks(const HostTopology& host, int gpu_a, int gpu_b) {
  const auto a = static_cast<std::size_t>(gpu_a), b = static_cast<std::size_t>(gpu_b);
  return a < host.nvlinks.size() && b < host.nvlinks[a].size() ? host.nvlinks[a][b] : 0;
}

namespace {

/// Smaller is better.
using NicMerit = std::tuple<bool, bool, PciDistance, double>;

NicMerit merit(const HostTopology& host, const Gpu& gpu, const Nic& nic) {
  return {!nic.up, !nic.rdma, pci_distance(host, gpu.place, nic.place), -nic.gbps};
}

/// The equally best cards for a GPU.
std::vector<int> best_nics(const HostTopology& host, const Gpu& gpu) {
  std::vector<int> best;
  for (std::size_t n = 0; n < host.nics.size(); ++n) {
    const NicMerit mine = merit(host, gpu, host.nics[n]);
    const NicMerit so_far = best.empty() ? mine : merit(host, gpu, host.nics[static_cast<std::size_t>(best.front())]);
    if (mine < so_far) best.clear();
    if (mine <= so_far) best.push_back(static_cast<int>(n));
  }
  return best;
}

}  // namespace

std::optional<int> nearest_nic(const HostTopology& host, int gpu) {
  BELLOWS_CHECK(gpu >= 0 && gpu < static_cast<int>(host.gpus.size()));
  const std::vector<int> best = best_nics(host, host.gpus[static_cast<std::size_t>(gpu)]);
  if (best.empty()) return std::nullopt;
  std::size_t sharers = 0;  // lower GPUs with the same choice
  for (int lower = 0; lower < gpu; ++lower)
    sharers += best_nics(host, host.gpus[static_cast<std::size_t>(lower)]) == best ? 1 : 0;
  return best[sharers % best.size()];
}

// ---- Order and partners ----

namespace {

/// Socket, NUMA node and PCI path of what a rank uses; socket -1: it may run everywhere.
using Nearness = std::tuple<int, int, std::string>;

Nearness nearness(const HostTopology& host, const RankPlace& place, int ranks_of_host) {
  if (static_cast<int>(host.gpus.size()) >= ranks_of_host && place.slot < static_cast<int>(host.gpus.size())) {
    const PciPlace& gpu = host.gpus[static_cast<std::size_t>(place.slot)].place;
    const NumaNode* node = node_of(host, gpu.numa_node);
    return {node ? node->package : -1, gpu.numa_node, gpu.path};
  }
  int first_package = -1, first_node = -1;
  bool everywhere = true;
  for (const NumaNode& node : host.numa_nodes) {
    bool touched = false;
    for (const CpuSet& core : node.cores) touched = touched || !intersect(core, place.allowed).empty();
    if (touched && first_node < 0) first_package = node.package, first_node = node.id;
    everywhere = everywhere && (touched || node.cores.empty());
  }
  if (everywhere) return {-1, -1, ""};
  return {first_package, first_node, ""};
}

}  // namespace

std::vector<int> rank_order(const Topology& topology) {
  std::vector<int> ranks_of(topology.hosts.size(), 0);
  for (const RankPlace& place : topology.ranks) ++ranks_of[static_cast<std::size_t>(place.host)];
  std::vector<std::tuple<int, Nearness, int>> keys;
  for (const RankPlace& place : topology.ranks) {
    const auto host = static_cast<std::size_t>(place.host);
    keys.emplace_back(place.host, nearness(topology.hosts[host], place, ranks_of[host]), place.slot);
  }
  std::vector<int> order(topology.ranks.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return keys[static_cast<std::size_t>(a)] < keys[static_cast<std::size_t>(b)]; });
  return order;
}

std::optional<int> partner_of(const Topology& topology, int rank) {
  const int world_size = static_cast<int>(topology.ranks.size());
  BELLOWS_CHECK(rank >= 0 && rank < world_size);
  if (world_size == 1) return std::nullopt;
  // The part that each rank shares its fate with: its machine, or its host where there is but one machine.
  std::map<std::string, int> machines;
  std::vector<int> part(topology.ranks.size());
  for (const RankPlace& place : topology.ranks)
    machines.try_emplace(topology.hosts[static_cast<std::size_t>(place.host)].machine,
                         static_cast<int>(machines.size()));
  for (std::size_t r = 0; r < part.size(); ++r) {
    const int host = topology.ranks[r].host;
    part[r] = machines.size() > 1 ? machines[topology.hosts[static_cast<std::size_t>(host)].machine] : host;
  }
  std::vector<int> order = rank_order(topology);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return part[static_cast<std::size_t>(a)] < part[static_cast<std::size_t>(b)]; });
  std::map<int, int> sizes;
  for (const int p : part) ++sizes[p];
  const auto place = std::find(order.begin(), order.end(), rank) - order.begin();
  if (sizes.size() == 1) return order[static_cast<std::size_t>((place + 1) % world_size)];
  int largest = 0;
  for (const auto& [p, size] : sizes) largest = std::max(largest, size);
  // Shifted by the length of the longest part, everybody lands in another one.
  if (2 * largest <= world_size) return order[static_cast<std::size_t>((place + largest) % world_size)];
  std::vector<int> others;
  std::size_t before = 0;  // ranks of the same part in earlier places
  for (const int other : order) {
    const bool same = part[static_cast<std::size_t>(other)] == part[static_cast<std::size_t>(rank)];
    if (!same) others.push_back(other);
    if (same && std::find(order.begin(), order.begin() + place, other) != order.begin() + place) ++before;
  }
  return others[before % others.size()];
}

// ---- Processors for ranks ----

namespace {

struct UsableCore {
  int node;  // index in numa_nodes
  CpuSet cpus;
};

/// Whole cores that may be used, neighbours side by side: by socket, then node.
std::vector<UsableCore> usable_cores(const HostTopology& host, const CpuSet& allowed) {
  std::vector<int> nodes(host.numa_nodes.size());
  std::iota(nodes.begin(), nodes.end(), 0);
  std::stable_sort(nodes.begin(), nodes.end(), [&](int a, int b) {
    return host.numa_nodes[static_cast<std::size_t>(a)].package < host.numa_nodes[static_cast<std::size_t>(b)].package;
  });
  std::vector<UsableCore> cores;
  for (const int n : nodes) {
    for (const CpuSet& core : host.numa_nodes[static_cast<std::size_t>(n)].cores) {
      CpuSet cpus = intersect(core, allowed);
      if (!cpus.empty()) cores.push_back({n, std::move(cpus)});
    }
  }
  return cores;
}

std::vector<UsableCore> of_node(const std::vector<UsableCore>& cores, int node) {
  std::vector<UsableCore> found;
  for (const UsableCore& core : cores)
    if (core.node == node) found.push_back(core);
  return found;
}

std::set<int> nodes_of(const std::vector<UsableCore>& cores) {
  std::set<int> nodes;
  for (const UsableCore& core : cores) nodes.insert(core.node);
  return nodes;
}

CpuSet joined(const std::vector<UsableCore>& cores) {
  CpuSet cpus;
  for (const UsableCore& core : cores) cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

/// Piece `i` of `pieces`. Rounded down at both ends, so pieces meet the ends of nodes of equal size where they can.
std::vector<UsableCore> piece(const std::vector<UsableCore>& cores, std::size_t pieces, std::size_t i) {
  const auto edge = [&](std::size_t k) { return cores.begin() + static_cast<long>(k * cores.size() / pieces); };
  return {edge(i), edge(i + 1)};
}

/// By slot the node (as an index) of its GPU; empty unless each slot has one, with a core of its own there.
std::vector<int> gpu_nodes(const HostTopology& host, int slots, const std::vector<UsableCore>& cores) {
  std::vector<int> nodes;
  std::map<int, std::size_t> ranks_on;
  for (int slot = 0; slot < slots && slot < static_cast<int>(host.gpus.size()); ++slot) {
    const NumaNode* node = node_of(host, host.gpus[static_cast<std::size_t>(slot)].place.numa_node);
    if (!node) return {};
    nodes.push_back(static_cast<int>(node - host.numa_nodes.data()));
    ++ranks_on[nodes.back()];
  }
  if (static_cast<int>(nodes.size()) < slots) return {};
  for (const auto& [node, ranks] : ranks_on)
    if (of_node(cores, node).size() < ranks) return {};
  return nodes;
}

std::string plural(std::size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

BindPlan bind_plan(const HostTopology& host, int slots, const CpuSet& allowed, BindMode mode) {
  BELLOWS_CHECK(slots >= 0);
  const auto count = static_cast<std::size_t>(slots);
  BindPlan plan;
  plan.slots.resize(count);
  if (mode == BindMode::kNone || slots == 0) return plan;
  const std::vector<UsableCore> cores = usable_cores(host, allowed);
  if (cores.empty()) {
    plan.failed = true;
    plan.note = "of the processors " + cpu_list(host.processors()) + " of " + host.name +
                " this process may use none (it may use " + (allowed.empty() ? "nothing" : cpu_list(allowed)) + ")";
    return plan;
  }
  if (cores.size() < count) {
    for (CpuSet& cpus : plan.slots) cpus = joined(cores);
    plan.note = plural(count, "rank") + " on " + plural(cores.size(), "core") + ": each may use all of " +
                cpu_list(joined(cores));
    return plan;
  }
  const std::vector<int> follow = gpu_nodes(host, slots, cores);
  for (std::size_t slot = 0; slot < count; ++slot) {
    std::vector<UsableCore> mine;
    if (follow.empty()) {
      mine = piece(cores, count, slot);
    } else {
      const auto before = std::count(follow.begin(), follow.begin() + static_cast<long>(slot), follow[slot]);
      const auto all = std::count(follow.begin(), follow.end(), follow[slot]);
      mine = piece(of_node(cores, follow[slot]), static_cast<std::size_t>(all), static_cast<std::size_t>(before));
    }
    if (mode == BindMode::kNuma) {
      std::vector<UsableCore> whole;
      for (const int node : nodes_of(mine)) {
        const std::vector<UsableCore> near = of_node(cores, node);
        whole.insert(whole.end(), near.begin(), near.end());
      }
      mine = whole;
    }
    plan.slots[slot] = joined(mine);
  }
  return plan;
}

BindMode automatic_bind(const HostTopology& host, int slots, const CpuSet& allowed, bool fixed_world) {
  const std::vector<UsableCore> cores = usable_cores(host, allowed);
  const std::set<int> nodes = nodes_of(cores);
  if (!fixed_world || nodes.size() < 2) return BindMode::kNone;
  if (static_cast<std::size_t>(slots) < nodes.size() || static_cast<std::size_t>(slots) > cores.size())
    return BindMode::kNone;
  // Ranks that follow their GPUs must not leave a node idle: the job may compute on the processors after all.
  const std::vector<int> follow = gpu_nodes(host, slots, cores);
  const bool idle = !follow.empty() && std::set<int>(follow.begin(), follow.end()) != nodes;
  return idle ? BindMode::kNone : BindMode::kNuma;
}

}  // namespace bellows
