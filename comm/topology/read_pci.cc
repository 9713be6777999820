// PCI devices and network cards as sysfs tells of them. A device's real path there is the chain of bridges above it:
//   /sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/infiniband/mlx5_0
//                host bridge  root port    device
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>

#include "sources.h"

namespace bellows {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

double number_in(const fs::path& path, double otherwise) {
  std::ifstream in(path);
  double number = otherwise;
  return in >> number ? number : otherwise;
}

// domain:bus:device.function, for instance 0000:1b:00.0; domains of more than four digits exist.
bool is_pci_address(const std::string& name) {
  if (name.size() < 12 || name.size() > 16) return false;
  const std::string places = std::string(name.size() - 8, 'x') + ":xx:xx.x";
  return std::equal(name.begin(), name.end(), places.begin(), [](char found, char place) {
    return place == 'x' ? std::isxdigit(static_cast<unsigned char>(found)) != 0 : found == place;
  });
}

std::vector<std::string> entries_of(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// The PCI device at or above a place in sysfs; a virtio card, for instance, lies one level below its own.
PciPlace place_above(const fs::path& link) {
  std::error_code error;
  fs::path path = fs::canonical(link, error);
  if (error) return {};
  while (!path.empty() && path != path.root_path() && !is_pci_address(path.filename().string()))
    path = path.parent_path();
  if (!is_pci_address(path.filename().string())) return {};
  PciPlace place{path.filename().string(), "", static_cast<int>(number_in(path / "numa_node", -1))};
  bool inside = false;
  for (const fs::path& part : path.parent_path()) {
    inside = inside || part.string().starts_with("pci");
    if (inside) place.path += (place.path.empty() ? "" : "/") + part.string();
  }
  return place;
}

// "400 Gb/sec (4X NDR)"
double rate_of(const fs::path& port) { return number_in(port / "rate", 0); }

Nic read_rdma(const fs::path& device, const std::string& name) {
  Nic nic{name, "", place_above(device / "device"), true, false, 0};
  for (const std::string& port : entries_of(device / "ports")) {
    const bool up = first_line(device / "ports" / port / "state").find("ACTIVE") != std::string::npos;
    nic.gbps = std::max(nic.gbps, rate_of(device / "ports" / port));
    nic.up = nic.up || up;
  }
  const auto interfaces = entries_of(device / "device" / "net");
  if (!interfaces.empty()) nic.interface = interfaces.front();
  return nic;
}

}  // namespace

std::string sysfs_address(const std::string& address) {
  std::string text = address;
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  if (text.find(':') == 8 && text.starts_with("0000")) text.erase(0, 4);
  return text;
}

PciPlace read_pci_place(const std::string& sysfs, const std::string& address) {
  const PciPlace place = place_above(fs::path(sysfs) / "bus/pci/devices" / address);
  return place.address == address ? place : PciPlace{address, "", -1};
}

std::vector<Nic> read_nics(const std::string& sysfs) {
  std::vector<Nic> nics;
  const fs::path rdma = fs::path(sysfs) / "class/infiniband", net = fs::path(sysfs) / "class/net";
  for (const std::string& name : entries_of(rdma)) nics.push_back(read_rdma(rdma / name, name));
  for (const std::string& name : entries_of(net)) {
    std::error_code error;
    if (!fs::exists(net / name / "device", error)) continue;  // made by software
    const bool known =
        std::any_of(nics.begin(), nics.end(), [&](const Nic& nic) { return nic.rdma && nic.interface == name; });
    if (known) continue;
    Nic nic{name, name, place_above(net / name / "device"), false, first_line(net / name / "operstate") == "up", 0};
    nic.gbps = std::max(0.0, number_in(net / name / "speed", 0) / 1000);  // -1: it does not know
    nics.push_back(nic);
  }
  std::stable_sort(nics.begin(), nics.end(),
                   [](const Nic& a, const Nic& b) { return a.place.address < b.place.address; });
  return nics;
}

}  // namespace bellows
