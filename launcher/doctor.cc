#include "doctor.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "bellows/base/config.h"
#include "bellows/base/hardware.h"
#include "bellows/base/memory.h"
#include "bellows/comm/communicator.h"
#include "command.h"
#if __has_include("bellows/base/device.h")
#include "bellows/base/device.h"
#endif

namespace bellows {
namespace {

using Json = nlohmann::ordered_json;

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// "always [madvise] never" -> "madvise"
std::string chosen(const std::string& line) {
  const std::size_t open = line.find('['), close = line.find(']');
  return open == std::string::npos || close == std::string::npos ? line : line.substr(open + 1, close - open - 1);
}

Json limit(int resource) {
  struct rlimit value {};
  getrlimit(resource, &value);
  return value.rlim_cur == RLIM_INFINITY ? Json("unlimited") : Json(value.rlim_cur);
}

Json gpus() {
  Json list = Json::array();
#if __has_include("bellows/base/device.h")
  const auto& devices = cuda_devices();
  if (!devices) return {{"devices", list}, {"why", devices.error()}};
  for (const Device* device : devices.value()) list.push_back(device->name());
  return {{"devices", list}, {"why", list.empty() ? "none found" : ""}};
#else
  return {{"devices", list}, {"why", "this build has no GPU devices"}};
#endif
}

/// What will hurt, in a sentence each with the way out.
std::vector<std::string> warnings(const Json& report) {
  std::vector<std::string> found;
  const Json& files = report["limits"]["open_files"];
  if (files.is_number() && files.get<double>() < 4096)
    found.push_back(fmt::format("only {} open files are allowed; many ranks need more: ulimit -n 65536", files.dump()));
  if (report["memory"]["available_bytes"].get<double>() < 2e9)
    found.push_back("less than 2 GB of memory is available");
  if (report["huge_pages"]["private"] == "never")
    found.push_back("transparent huge pages are off: first touch of memory is slow (set .../transparent_hugepage/enabled to madvise)");
  if (report["huge_pages"]["shared"] == "never")
    found.push_back("huge pages for shared memory are off: set .../transparent_hugepage/shmem_enabled to advise");
  for (const Json& transport : report["transports"])
    if (!transport["usable"].get<bool>())
      found.push_back("transport " + transport["name"].get<std::string>() + " cannot be used: " + transport["note"].get<std::string>());
  return found;
}

Json examine() {
  const CpuInfo cpu = cpu_info();
  const MatrixPeak peak = measure_matrix_peak();
  const MemoryBandwidth bandwidth = measure_memory_bandwidth();
  Json report;
  report["cpu"] = {{"model", cpu.model},         {"allowed_cores", cpu.allowed.size()},
                   {"quota", cpu.quota ? Json(*cpu.quota) : Json(nullptr)},
                   {"physical_cores", cpu.physical_cores}, {"numa_nodes", cpu.numa_nodes},
                   {"avx2", cpu.avx2},           {"avx512", cpu.avx512},
                   {"avx512_bf16", cpu.avx512_bf16}, {"amx_bf16", cpu.amx_bf16}};
  report["peak"] = {{"f32_gflops_per_core", peak.f32 * 1e-9},
                    {"f32_how", peak.f32_how},
                    {"bf16_gflops_per_core", peak.bf16 * 1e-9},
                    {"bf16_how", peak.bf16_how}};
  double total = 0, available = 0;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key, unit; meminfo >> key;) {
    double kib = 0;
    meminfo >> kib;
    std::getline(meminfo, unit);
    if (key == "MemTotal:") total = kib * 1024;
    if (key == "MemAvailable:") available = kib * 1024;
  }
  struct statvfs shm {};
  const bool has_shm = statvfs("/dev/shm", &shm) == 0;
  report["memory"] = {{"total_bytes", total},
                      {"available_bytes", available},
                      {"copy_gbps", bandwidth.copy * 1e-9},
                      {"triad_gbps", bandwidth.triad * 1e-9},
                      {"dev_shm_free_bytes", has_shm ? static_cast<double>(shm.f_bavail) * static_cast<double>(shm.f_frsize) : 0.0}};
  report["huge_pages"] = {{"private", chosen(first_line("/sys/kernel/mm/transparent_hugepage/enabled"))},
                          {"shared", chosen(first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled"))}};
  report["limits"] = {{"open_files", limit(RLIMIT_NOFILE)}, {"locked_memory", limit(RLIMIT_MEMLOCK)}};
  report["gpus"] = gpus();
  report["transports"] = Json::array();
  for (const TransportInfo& info : transports())
    report["transports"].push_back({{"name", info.name}, {"usable", info.usable}, {"note", info.note}});
  report["mpirun"] = BELLOWS_DOCTOR_MPI ? "compiled in" : "not compiled in (no MPI was found)";
  report["warnings"] = warnings(report);
  return report;
}

void print(const Json& r) {
  const auto line = [](const char* what, const std::string& value) { fmt::print("{:<20} {}\n", what, value); };
  const Json& cpu = r["cpu"];
  line("processor", cpu["model"]);
  line("cores", fmt::format("{} allowed of {} physical, {} NUMA node{}{}", cpu["allowed_cores"].get<int>(),
                            cpu["physical_cores"].get<int>(), cpu["numa_nodes"].get<int>(),
                            cpu["numa_nodes"].get<int>() == 1 ? "" : "s",
                            cpu["quota"].is_null() ? "" : fmt::format(", limited to {:.1f} cores' time", cpu["quota"].get<double>())));
  line("matrix peak f32", fmt::format("{:.0f} GFLOP/s per core ({})", r["peak"]["f32_gflops_per_core"].get<double>(),
                                      r["peak"]["f32_how"].get<std::string>()));
  line("matrix peak bf16", fmt::format("{:.0f} GFLOP/s per core ({})", r["peak"]["bf16_gflops_per_core"].get<double>(),
                                       r["peak"]["bf16_how"].get<std::string>()));
  const Json& memory = r["memory"];
  line("memory", fmt::format("{} available of {}", human_bytes(memory["available_bytes"]), human_bytes(memory["total_bytes"])));
  line("memory bandwidth", fmt::format("copy {:.1f} GB/s, triad {:.1f} GB/s (all cores)", memory["copy_gbps"].get<double>(),
                                       memory["triad_gbps"].get<double>()));
  line("huge pages", fmt::format("private {}, shared {}", r["huge_pages"]["private"].get<std::string>(),
                                 r["huge_pages"]["shared"].get<std::string>()));
  line("open files", r["limits"]["open_files"].is_string() ? "unlimited" : r["limits"]["open_files"].dump());
  line("locked memory", r["limits"]["locked_memory"].is_string() ? "unlimited" : human_bytes(r["limits"]["locked_memory"]));
  line("/dev/shm", human_bytes(memory["dev_shm_free_bytes"]) + " free (not used: shared memory has no names here)");
  std::string names;
  for (const Json& name : r["gpus"]["devices"]) names += (names.empty() ? "" : ", ") + name.get<std::string>();
  line("GPUs", names.empty() ? "none: " + r["gpus"]["why"].get<std::string>() : names);
  for (const Json& t : r["transports"])
    line(("transport " + t["name"].get<std::string>()).c_str(),
         std::string(t["usable"].get<bool>() ? "usable" : "not usable") +
             (t["note"].get<std::string>().empty() ? "" : ": " + t["note"].get<std::string>()));
  line("start by mpirun", r["mpirun"]);
  for (const Json& warning : r["warnings"]) fmt::print("! {}\n", warning.get<std::string>());
  if (r["warnings"].empty()) fmt::print("nothing here will hurt\n");
}

}  // namespace

int doctor_main(int argc, char** argv) {
  return with_errors([&] {
    bool json = false;
    Settings settings("bellows doctor", "says what this host and this build offer");
    settings.add("json", &json, "print JSON");
    if (!settings.parse(argc, argv)) return 0;
    const Json report = examine();
    if (json)
      fmt::print("{}\n", report.dump(1));
    else
      print(report);
    return 0;
  });
}

}  // namespace bellows
