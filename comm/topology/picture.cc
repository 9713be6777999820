#include <algorithm>
#include <cstdio>
#include <map>

#include "bellows/comm/topology.h"

namespace bellows {
namespace {

std::string counted(int count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string size_text(std::uint64_t bytes) {
  char text[32];
  const double gib = static_cast<double>(bytes) / (1 << 30);
  std::snprintf(text, sizeof text, gib < 10 ? "%.1f GiB" : "%.0f GiB", gib);
  return text;
}

std::string speed_text(double gbps) {
  char text[32];
  std::snprintf(text, sizeof text, "%g Gbit/s", gbps);
  return gbps > 0 ? text : "speed unknown";
}

/// A line and what hangs below it.
struct Branch {
  std::string text;
  std::vector<Branch> below;
};

void draw(const std::vector<Branch>& branches, const std::string& indent, std::string* out) {
  for (std::size_t i = 0; i < branches.size(); ++i) {
    const bool last = i + 1 == branches.size();
    *out += indent + (last ? "└─ " : "├─ ") + branches[i].text + "\n";
    draw(branches[i].below, indent + (last ? "   " : "│  "), out);
  }
}

std::string describe(const HostTopology& host, std::size_t g) {
  const Gpu& gpu = host.gpus[g];
  std::string text = "GPU " + std::to_string(g) + "  " + gpu.name + "  " + gpu.place.address;
  if (const auto nic = nearest_nic(host, static_cast<int>(g))) {
    const Nic& card = host.nics[static_cast<std::size_t>(*nic)];
    text += "  -> " + card.name + " (" + name_of(pci_distance(host, gpu.place, card.place)) + ")";
  }
  return text;
}

std::string describe(const Nic& nic) {
  std::string text = "NIC " + nic.name;
  if (!nic.interface.empty() && nic.interface != nic.name) text += " (" + nic.interface + ")";
  return text + "  " + (nic.place.address.empty() ? "" : nic.place.address + "  ") + (nic.rdma ? "RDMA, " : "") +
         speed_text(nic.gbps) + (nic.up ? "" : ", down");
}

/// GPUs and network cards of a NUMA node; -1: those of none that the host has.
std::vector<Branch> devices(const HostTopology& host, int id) {
  const auto belongs = [&](int node) {
    const bool known = std::any_of(host.numa_nodes.begin(), host.numa_nodes.end(),
                                   [node](const NumaNode& one) { return one.id == node; });
    return known ? node == id : id == -1;
  };
  std::vector<Branch> found;
  for (std::size_t g = 0; g < host.gpus.size(); ++g)
    if (belongs(host.gpus[g].place.numa_node)) found.push_back({describe(host, g), {}});
  for (const Nic& nic : host.nics)
    if (belongs(nic.place.numa_node)) found.push_back({describe(nic), {}});
  return found;
}

std::string describe(const NumaNode& node) {
  HostTopology alone;
  alone.numa_nodes = {node};
  std::string text = "NUMA node " + std::to_string(node.id) + "  " + size_text(node.memory_bytes);
  if (node.cores.empty()) return text + ", no cores";
  text += ", " + counted(alone.core_count(), "core");
  const std::size_t threads = node.cores.front().size();
  if (threads > 1) text += " of " + std::to_string(threads) + " threads";
  return text + ": " + cpu_list(alone.processors());
}

// "NV18", or the distance over PCI in short.
std::string link_text(const HostTopology& host, std::size_t a, std::size_t b) {
  if (a == b) return ".";
  const int links = nvlinks(host, static_cast<int>(a), static_cast<int>(b));
  if (links > 0) return "NV" + std::to_string(links);
  switch (pci_distance(host, host.gpus[a].place, host.gpus[b].place)) {
    case PciDistance::kSame:
      return "same";
    case PciDistance::kSwitch:
      return "switch";
    case PciDistance::kHostBridge:
      return "bridge";
    case PciDistance::kSocket:
      return "socket";
    case PciDistance::kSystem:
      break;
  }
  return "system";
}

std::string link_table(const HostTopology& host) {
  if (host.gpus.size() < 2) return "";
  std::string text = "GPU to GPU";
  const auto cell = [&text](const std::string& word) {
    text += std::string(8 - std::min<std::size_t>(word.size(), 7), ' ') + word;
  };
  for (std::size_t b = 0; b < host.gpus.size(); ++b) cell(std::to_string(b));
  text += "\n";
  for (std::size_t a = 0; a < host.gpus.size(); ++a) {
    const std::string label = std::to_string(a);
    text += std::string(10 - label.size(), ' ') + label;
    for (std::size_t b = 0; b < host.gpus.size(); ++b) cell(link_text(host, a, b));
    text += "\n";
  }
  return text;
}

}  // namespace

std::string picture(const HostTopology& host) {
  std::map<int, Branch> packages;
  for (const NumaNode& node : host.numa_nodes) {
    Branch& package =
        packages.try_emplace(node.package, Branch{"package " + std::to_string(node.package), {}}).first->second;
    package.below.push_back({describe(node), devices(host, node.id)});
  }
  std::vector<Branch> branches;
  for (auto& [id, package] : packages) branches.push_back(std::move(package));
  for (Branch& device : devices(host, -1)) branches.push_back(std::move(device));
  std::string text = host.name + ": " + counted(host.package_count(), "package") + ", " +
                     counted(static_cast<int>(host.numa_nodes.size()), "NUMA node") + ", " +
                     counted(host.core_count(), "core") + ", " + counted(static_cast<int>(host.gpus.size()), "GPU") +
                     ", " + counted(static_cast<int>(host.nics.size()), "NIC") + "\n";
  draw(branches, "", &text);
  return text + link_table(host);
}

std::string picture_of_ranks(const Topology& topology) {
  std::string text;
  std::size_t widest = 4;
  for (const RankPlace& place : topology.ranks)
    widest = std::max(widest, topology.hosts[static_cast<std::size_t>(place.host)].name.size());
  for (std::size_t rank = 0; rank < topology.ranks.size(); ++rank) {
    const RankPlace& place = topology.ranks[rank];
    const HostTopology& host = topology.hosts[static_cast<std::size_t>(place.host)];
    char start[64];
    std::snprintf(start, sizeof start, "rank %-4zu ", rank);
    text += start + host.name + std::string(widest - host.name.size(), ' ') + "  slot " + std::to_string(place.slot);
    text += place.allowed.empty() ? "  not bound" : "  processors " + cpu_list(place.allowed);
    if (place.slot < static_cast<int>(host.gpus.size())) {
      text += "  GPU " + std::to_string(place.slot);
      if (const auto nic = nearest_nic(host, place.slot)) text += "  " + host.nics[static_cast<std::size_t>(*nic)].name;
    }
    text += "\n";
  }
  return text;
}

}  // namespace bellows
