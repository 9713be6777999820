#include <cpuid.h>
#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <fstream>

#include "bellows/base/hardware.h"

namespace bellows {
namespace {

std::string model_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(':');
    if (line.starts_with("model name") && colon != line.npos) return line.substr(std::min(colon + 2, line.size()));
  }
  return "unknown";
}

// The mask is asked for with room to spare: hosts with more than 1024 cores refuse a plain cpu_set_t.
std::vector<int> allowed_cores() {
  std::vector<int> cores;
  for (int room = 1024; room <= 1 << 16; room *= 2) {
    cpu_set_t* set = CPU_ALLOC(room);
    const std::size_t bytes = CPU_ALLOC_SIZE(room);
    const bool fits = sched_getaffinity(0, bytes, set) == 0;
    for (int core = 0; fits && core < room; ++core)
      if (CPU_ISSET_S(core, bytes, set)) cores.push_back(core);
    CPU_FREE(set);
    if (fits) break;
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

std::optional<double> control_group_quota() {
  double quota = 0, period = 0;
  if (std::ifstream in("/sys/fs/cgroup/cpu.max"); in) {
    if (in >> quota >> period && period > 0) return quota / period;  // "max 100000" is no number: no limit
    return std::nullopt;
  }
  std::ifstream quota_in("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), period_in("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (quota_in >> quota && period_in >> period && quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

void read_topology(CpuInfo* info) {
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return;
  if (hwloc_topology_load(topology) == 0) {
    info->numa_nodes = std::max(1, hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE));
    info->physical_cores = std::max(1, hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE));
  }
  hwloc_topology_destroy(topology);
}

bool has_amx_bf16() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
}

bool has_avx512_bf16() {
  unsigned a, b, c, d;
  return __builtin_cpu_supports("avx512f") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

}  // namespace

CpuInfo cpu_info() {
  CpuInfo info;
  info.model = model_name();
  info.allowed = allowed_cores();
  info.quota = control_group_quota();
  read_topology(&info);
  info.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  info.avx512 = __builtin_cpu_supports("avx512f");
  info.avx512_bf16 = has_avx512_bf16();
  info.amx_bf16 = has_amx_bf16();
  return info;
}

}  // namespace bellows
