#pragma once
#include <string>
#include <vector>

#include "bellows/comm/topology.h"

namespace bellows {

/// Packages, NUMA nodes and cores of the whole machine, whatever this process is allowed of it. `synthetic` as
/// HostSources::processors.
std::vector<NumaNode> read_numa_nodes(const std::string& synthetic);

/// The bridges above a PCI device and its NUMA node; unknown to sysfs: the address only.
PciPlace read_pci_place(const std::string& sysfs, const std::string& address);

/// Network cards that are devices (no bridges, tunnels and the like) by address, a card with RDMA once.
std::vector<Nic> read_nics(const std::string& sysfs);

/// A GPU as NVML tells of it.
struct NvmlGpu {
  std::string name, uuid, address;
  std::vector<std::string> link_peers;  ///< per active NVLink: the address of its other end
  int links_to_switches = 0;            ///< of them, those whose other end is a switch
};
/// Empty where there is no such library, no driver or no GPU.
std::vector<NvmlGpu> read_nvml(const std::string& library);

/// NVLinks between each two GPUs: their direct ones, and as many as both have to the switches, which connect all with
/// all. Empty if there is none at all.
std::vector<std::vector<int>> count_nvlinks(const std::vector<NvmlGpu>& gpus);

/// "00000000:1B:00.0", as NVML writes it, in the way of sysfs: "0000:1b:00.0".
std::string sysfs_address(const std::string& address);

}  // namespace bellows
