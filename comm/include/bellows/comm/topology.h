#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/base/error.h"

namespace bellows {

// What a host is made of, who runs where on it, and what follows from that. Everything here is a value or a pure
// function of values, but for this_host() and read_host().

/// A set of logical processors, as the kernel numbers them: ascending, each once.
using CpuSet = std::vector<int>;
/// "0-3,8"; empty for the empty set.
std::string cpu_list(const CpuSet& cpus);
/// The other way round; a failure names what is wrong.
Result<CpuSet> parse_cpu_list(const std::string& text);
/// Processors in both.
CpuSet intersect(const CpuSet& a, const CpuSet& b);

/// A NUMA node: memory, and the cores that are near to it (none for memory without processors).
struct NumaNode {
  int id = 0;       ///< as the kernel numbers them
  int package = 0;  ///< the socket it belongs to
  std::uint64_t memory_bytes = 0;
  std::vector<CpuSet> cores;  ///< a core is the logical processors that share it
  bool operator==(const NumaNode&) const = default;
};

/// Where a device hangs on the PCI bus.
struct PciPlace {
  std::string address;  ///< "0000:1b:00.0"; empty: unknown
  /// The bridges above it from the host bridge down, as sysfs names them: "pci0000:15/0000:15:01.0".
  std::string path;
  int numa_node = -1;  ///< -1: the firmware does not say
  bool operator==(const PciPlace&) const = default;
};

struct Gpu {
  std::string name, uuid;  ///< in the order in which NVML numbers them, which is that of PCI addresses
  PciPlace place;
  bool operator==(const Gpu&) const = default;
};

struct Nic {
  std::string name;       ///< "mlx5_0" where it can do RDMA, else that of its interface
  std::string interface;  ///< "ib0", "eth0"; empty: none
  PciPlace place;
  bool rdma = false;
  bool up = false;
  double gbps = 0;  ///< 0: unknown
  bool operator==(const Nic&) const = default;
};

/// One operating system that runs ranks: a machine, or a container that shares no memory with others on its machine.
struct HostTopology {
  std::string name;
  /// The same for processes under one kernel: its boot id. What fails when a machine fails.
  std::string machine;
  /// The same for processes that can map each other's memory: the machine and the view of processes (PID namespace),
  /// through which memory is reached. Two containers of one machine differ here and agree in `machine`; network, mount
  /// and user namespaces do not matter.
  std::string identity;
  std::vector<NumaNode> numa_nodes;
  std::vector<Gpu> gpus;
  std::vector<Nic> nics;
  /// nvlinks[a][b]: NVLinks between two GPUs, through switches or not; empty where there are none.
  std::vector<std::vector<int>> nvlinks;

  CpuSet processors() const;  ///< all of them
  int core_count() const;
  int package_count() const;
  bool operator==(const HostTopology&) const = default;
};

/// Where a rank runs.
struct RankPlace {
  int host = 0;    ///< index in Topology::hosts
  int slot = 0;    ///< the how manieth of its host's ranks
  CpuSet allowed;  ///< its affinity mask; empty: unknown
  bool operator==(const RankPlace&) const = default;
};

/// The hosts of one generation and the places of its ranks; or, without ranks, a recorded description of hosts.
struct Topology {
  std::vector<HostTopology> hosts;
  std::vector<RankPlace> ranks;
  bool operator==(const Topology&) const = default;
};

// ---- Reading and exchanging ----

/// This process' host, read when first asked for: processors by hwloc, GPUs by the driver's NVML (opened at run time;
/// its absence is normal), network cards by sysfs. Never throws: what cannot be read is missing.
const HostTopology& this_host();

/// Where read_host looks: tests bring their own.
struct HostSources {
  std::string sysfs = "/sys";
  std::string nvml = "libnvidia-ml.so.1";
  std::string processors;  ///< an hwloc synthetic description instead of this machine: "package:2 numa:1 core:4 pu:2"
};
HostTopology read_host(const HostSources& sources = {});

/// Processors that the kernel lets this process run on.
CpuSet allowed_processors();

/// What a rank brings to the gathering of a generation's topology.
std::string topology_blob(const HostTopology& host, const CpuSet& allowed);
/// Blob r is rank r's: Communicator::all_gather_blobs or Bootstrap::exchange gathers them. Hosts stand in the order of
/// their lowest ranks. Throws UserError, naming the rank, for a blob that is none.
Topology make_topology(const std::vector<std::string>& blobs);

/// A recorded topology; the grammar is in docs/topology.md. A failure names the place in the text and what is allowed.
std::string to_json(const Topology& topology);
Result<Topology> topology_from_json(const std::string& text);
Result<Topology> load_topology(const std::string& path);

// ---- Distances ----

/// How far two devices of a host are from each other over PCI, nearest first.
enum class PciDistance {
  kSame,        ///< one device
  kSwitch,      ///< a PCI switch between them: traffic does not reach the processor
  kHostBridge,  ///< the same host bridge of a processor
  kSocket,      ///< different host bridges of one socket
  kSystem       ///< across sockets, or unknown
};
const char* name_of(PciDistance distance);
PciDistance pci_distance(const HostTopology& host, const PciPlace& a, const PciPlace& b);

/// NVLinks between two GPUs; 0: none.
int nvlinks(const HostTopology& host, int gpu_a, int gpu_b);

/// The network card for a GPU's traffic: those that are up before others, then RDMA, then the nearest, then the
/// fastest; equally good ones are dealt out to the GPUs that share them. Nothing where the host has none.
std::optional<int> nearest_nic(const HostTopology& host, int gpu);

// ---- Places for ranks ----

/// Ranks by nearness: by host (in the order of hosts), then socket, then NUMA node of the processors they may use, then
/// slot. Ranks that may run everywhere keep their order before the others. Element i is the rank in place i.
std::vector<int> rank_order(const Topology& topology);

/// The rank that keeps a copy of `rank`'s state: on another machine where there is one, else on another host, else the
/// next. Where no machine holds more than half of the ranks every rank is the partner of exactly one. Nothing for a
/// world of one.
std::optional<int> partner_of(const Topology& topology, int rank);

enum class BindMode { kNone, kCore, kNuma };

/// Which processors each local rank gets.
struct BindPlan {
  std::vector<CpuSet> slots;  ///< by slot; empty set: not bound
  std::string note;           ///< why it is not as asked for; empty: it is
  bool failed = false;        ///< nothing could be bound at all
};

/// Cuts the processors of `host` that are in `allowed` among `slots` ranks.
/// kCore: each gets a run of whole cores, neighbours getting neighbouring ones; no core has two ranks, all are given
/// out. kNuma: each gets all processors of the NUMA nodes that its run of cores touches. Where each slot has a GPU of
/// known NUMA node (slot i GPU i) and every such node has cores enough, ranks share the cores of their GPU's node
/// instead. With more ranks than cores each gets everything that is allowed: the kernel balances better than a fixed
/// choice.
BindPlan bind_plan(const HostTopology& host, int slots, const CpuSet& allowed, BindMode mode);

/// Whether binding by NUMA node can only help: several nodes, at least a rank for each and a core for each rank, and
/// no rank more likely to come or go (`fixed_world`), since cores are cut for all slots.
BindMode automatic_bind(const HostTopology& host, int slots, const CpuSet& allowed, bool fixed_world);

// ---- Pictures ----

/// The host as a tree of text, with a table of the links between its GPUs; lines end in '\n'.
std::string picture(const HostTopology& host);
/// One line a rank: place, processors, GPU and network card of its slot.
std::string picture_of_ranks(const Topology& topology);

}  // namespace bellows
