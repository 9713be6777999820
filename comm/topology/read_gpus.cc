// NVML, the driver's library, opened at run time: only what is used of it is declared here.
#include <dlfcn.h>

#include <algorithm>
#include <memory>

#include "sources.h"

namespace bellows {
namespace {

using NvmlDevice = void*;
constexpr int kSuccess = 0;
constexpr unsigned kMostLinks = 36;
constexpr int kRemoteIsSwitch = 2;

/// nvmlPciInfo_t of the third version.
struct NvmlPci {
  char legacy_address[16];
  unsigned domain, bus, device, id, subsystem;
  char address[32];
};

template <class Function>
bool find(void* library, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(library, name));
  return *function != nullptr;
}

struct Nvml {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, NvmlDevice*) = nullptr;
  int (*name)(NvmlDevice, char*, unsigned) = nullptr;
  int (*uuid)(NvmlDevice, char*, unsigned) = nullptr;
  int (*pci)(NvmlDevice, NvmlPci*) = nullptr;
  // Absent in old drivers: then no NVLinks are seen.
  int (*link_state)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*link_pci)(NvmlDevice, unsigned, NvmlPci*) = nullptr;
  int (*link_type)(NvmlDevice, unsigned, int*) = nullptr;

  bool load(void* library) {
    find(library, "nvmlDeviceGetNvLinkState", &link_state);
    find(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2", &link_pci);
    find(library, "nvmlDeviceGetNvLinkRemoteDeviceType", &link_type);
    return find(library, "nvmlInit_v2", &init) && find(library, "nvmlShutdown", &shutdown) &&
           find(library, "nvmlDeviceGetCount_v2", &count) && find(library, "nvmlDeviceGetHandleByIndex_v2", &handle) &&
           find(library, "nvmlDeviceGetName", &name) && find(library, "nvmlDeviceGetUUID", &uuid) &&
           find(library, "nvmlDeviceGetPciInfo_v3", &pci);
  }
};

std::string address_of(const NvmlPci& pci) {
  return sysfs_address(std::string(pci.address, std::find(pci.address, pci.address + sizeof pci.address, '\0')));
}

NvmlGpu read_gpu(const Nvml& nvml, NvmlDevice device) {
  NvmlGpu gpu;
  char text[96] = {};
  NvmlPci pci{};
  if (nvml.name(device, text, sizeof text - 1) == kSuccess) gpu.name = text;
  if (nvml.uuid(device, text, sizeof text - 1) == kSuccess) gpu.uuid = text;
  if (nvml.pci(device, &pci) == kSuccess) gpu.address = address_of(pci);
  for (unsigned link = 0; nvml.link_state && link < kMostLinks; ++link) {
    unsigned active = 0;
    if (nvml.link_state(device, link, &active) != kSuccess || active == 0) continue;
    NvmlPci remote{};
    int type = -1;
    if (nvml.link_type) nvml.link_type(device, link, &type);
    if (nvml.link_pci) nvml.link_pci(device, link, &remote);
    gpu.link_peers.push_back(address_of(remote));
    if (type == kRemoteIsSwitch) ++gpu.links_to_switches;
  }
  return gpu;
}

}  // namespace

std::vector<NvmlGpu> read_nvml(const std::string& library) {
  std::vector<NvmlGpu> gpus;
  const std::unique_ptr<void, int (*)(void*)> opened(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL),
                                                     [](void* handle) { return handle ? dlclose(handle) : 0; });
  Nvml nvml;
  if (!opened || !nvml.load(opened.get()) || nvml.init() != kSuccess) return gpus;
  unsigned count = 0;
  if (nvml.count(&count) != kSuccess) count = 0;
  for (unsigned index = 0; index < count; ++index) {
    NvmlDevice device = nullptr;
    if (nvml.handle(index, &device) == kSuccess) gpus.push_back(read_gpu(nvml, device));
  }
  nvml.shutdown();
  return gpus;
}

std::vector<std::vector<int>> count_nvlinks(const std::vector<NvmlGpu>& gpus) {
  std::vector<std::vector<int>> links(gpus.size(), std::vector<int>(gpus.size(), 0));
  bool any = false;
  for (std::size_t a = 0; a < gpus.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      const auto direct = std::count(gpus[a].link_peers.begin(), gpus[a].link_peers.end(), gpus[b].address);
      const int switched = std::min(gpus[a].links_to_switches, gpus[b].links_to_switches);
      links[a][b] = links[b][a] = static_cast<int>(direct) + switched;
      any = any || links[a][b] > 0;
    }
  }
  if (!any) links.clear();
  return links;
}

}  // namespace bellows
