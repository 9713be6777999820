#include "sources.h"
#include "transports/transport.h"

namespace bellows {

HostTopology read_host(const HostSources& sources) {
  HostTopology host;
  const Introduction self = introduce_this_process();
  host.name = self.host;
  host.identity = self.machine;
  // boot id "/" PID namespace ["/" part], where the part stands for a machine of its own.
  const std::size_t space = self.machine.find('/'), part = self.machine.find('/', space + 1);
  host.machine = self.machine.substr(0, space) + (part == std::string::npos ? "" : self.machine.substr(part));

  host.numa_nodes = read_numa_nodes(sources.processors);
  if (host.core_count() == 0) {  // without a description each processor is a core
    host.numa_nodes = {{0, 0, 0, {}}};
    for (const int cpu : allowed_processors()) host.numa_nodes[0].cores.push_back({cpu});
  }
  const std::vector<NvmlGpu> gpus = read_nvml(sources.nvml);
  for (const NvmlGpu& gpu : gpus) host.gpus.push_back({gpu.name, gpu.uuid, read_pci_place(sources.sysfs, gpu.address)});
  host.nvlinks = count_nvlinks(gpus);
  host.nics = read_nics(sources.sysfs);
  return host;
}

const HostTopology& this_host() {
  static const HostTopology host = read_host();
  return host;
}

}  // namespace bellows
