#include <hwloc.h>

#include <algorithm>

#include "sources.h"

namespace bellows {
namespace {

class Hwloc {
 public:
  explicit Hwloc(const std::string& synthetic) {
    if (hwloc_topology_init(&topology_) != 0) return;
    made_ = true;
    if (!synthetic.empty() && hwloc_topology_set_synthetic(topology_, synthetic.c_str()) != 0) return;
    // The whole machine: the host's description must not depend on which of its ranks gives it.
    hwloc_topology_set_flags(topology_, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    loaded_ = hwloc_topology_load(topology_) == 0;
  }
  ~Hwloc() {
    if (made_) hwloc_topology_destroy(topology_);
  }
  Hwloc(const Hwloc&) = delete;
  Hwloc& operator=(const Hwloc&) = delete;

  bool loaded() const { return loaded_; }
  std::vector<hwloc_obj_t> all(hwloc_obj_type_t type) const {
    std::vector<hwloc_obj_t> found;
    for (hwloc_obj_t object = nullptr; (object = hwloc_get_next_obj_by_type(topology_, type, object));)
      found.push_back(object);
    return found;
  }

 private:
  hwloc_topology_t topology_ = nullptr;
  bool made_ = false, loaded_ = false;
};

CpuSet processors_of(hwloc_obj_t object) {
  CpuSet cpus;
  if (!object->cpuset) return cpus;
  for (int cpu = -1; (cpu = hwloc_bitmap_next(object->cpuset, cpu)) >= 0;) cpus.push_back(cpu);
  return cpus;
}

int package_of(hwloc_obj_t object) {
  for (; object; object = object->parent)
    if (object->type == HWLOC_OBJ_PACKAGE) return static_cast<int>(object->os_index);
  return 0;
}

}  // namespace

std::vector<NumaNode> read_numa_nodes(const std::string& synthetic) {
  const Hwloc hwloc(synthetic);
  std::vector<NumaNode> nodes;
  if (!hwloc.loaded()) return nodes;
  std::vector<CpuSet> near;  // to each node
  for (const hwloc_obj_t object : hwloc.all(HWLOC_OBJ_NUMANODE)) {
    nodes.push_back({static_cast<int>(object->os_index), package_of(object), object->attr->numanode.local_memory, {}});
    near.push_back(processors_of(object));
  }
  std::vector<hwloc_obj_t> cores = hwloc.all(HWLOC_OBJ_CORE);
  if (cores.empty()) cores = hwloc.all(HWLOC_OBJ_PU);  // some virtual machines say no more
  for (const hwloc_obj_t object : cores) {
    const CpuSet core = processors_of(object);
    // Where cores have two kinds of memory they count with the first.
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      if (core.empty() || !std::includes(near[n].begin(), near[n].end(), core.begin(), core.end())) continue;
      nodes[n].cores.push_back(core);
      nodes[n].package = package_of(object);
      break;
    }
  }
  std::sort(nodes.begin(), nodes.end(), [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  for (NumaNode& node : nodes) std::sort(node.cores.begin(), node.cores.end());
  return nodes;
}

}  // namespace bellows
