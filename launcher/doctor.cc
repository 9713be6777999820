#include "doctor.h"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bellows/base/config.h"
#include "bellows/base/device.h"
#include "bellows/base/error.h"
#include "bellows/base/hardware.h"
#include "bellows/base/memory.h"
#include "bellows/comm/communicator.h"
#include "bellows/comm/topology.h"
#include "bellows/elastic/session.h"
#include "command.h"

namespace bellows {
namespace {

using Json = nlohmann::ordered_json;

/// What is found, as a page for people and as JSON; each finding is said once, here.
class Report {
 public:
  void section(const std::string& title) { text_ += (text_.empty() ? "" : "\n") + title + "\n"; }
  void line(const std::string& what, const std::string& value, const std::string& note = "") {
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, "  %-18s ", what.c_str());
    std::string row = buffer + value;
    if (!note.empty()) row += std::string(row.size() < 41 ? 41 - row.size() : 2, ' ') + note;
    text_ += row + "\n";
  }
  void indented(const std::string& lines) {
    std::istringstream in(lines);
    for (std::string line; std::getline(in, line);) text_ += "  " + line + "\n";
  }
  void warn(const std::string& sentence) { warnings_.push_back(sentence); }
  Json& json() { return json_; }

  std::string text() const {
    if (warnings_.empty()) return text_ + "\nNothing here will hurt.\n";
    std::string all = text_ + "\nThis will hurt\n";
    for (const auto& warning : warnings_) all += "  ! " + warning + "\n";
    return all;
  }
  std::string json_text() {
    json_["warnings"] = warnings_;
    return json_.dump(2) + "\n";
  }

 private:
  std::string text_;
  std::vector<std::string> warnings_;
  Json json_;
};

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string first_line(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

void processor(Report& report) {
  const CpuInfo cpu = cpu_info();
  report.section("Processor");
  report.line("model", cpu.model);
  report.line("cores allowed", std::to_string(cpu.allowed.size()) + " (" + cpu_list(cpu.allowed) + ")",
              "of " + std::to_string(cpu.physical_cores) + " cores on the host");
  report.line("NUMA nodes", std::to_string(cpu.numa_nodes));
  report.line("vector units",
              cpu.avx512 ? "AVX-512"
              : cpu.avx2 ? "AVX2"
                         : "SSE",
              std::string("bfloat16: ") + (cpu.amx_bf16      ? "AMX"
                                           : cpu.avx512_bf16 ? "AVX-512 bf16"
                                                             : "none"));
  report.json()["cpu"] = {{"model", cpu.model},           {"allowed_cores", cpu.allowed.size()},
                          {"cores", cpu.allowed},         {"physical_cores", cpu.physical_cores},
                          {"numa_nodes", cpu.numa_nodes}, {"avx2", cpu.avx2},
                          {"avx512", cpu.avx512},         {"avx512_bf16", cpu.avx512_bf16},
                          {"amx_bf16", cpu.amx_bf16},     {"quota", nullptr}};
  if (!cpu.quota) return;
  report.json()["cpu"]["quota"] = *cpu.quota;
  report.line("time allowed", fixed(*cpu.quota, 2) + " cores", "by the control group");
  if (*cpu.quota < static_cast<double>(cpu.allowed.size()))
    report.warn("The control group gives " + fixed(*cpu.quota, 2) + " cores' time to " +
                std::to_string(cpu.allowed.size()) +
                " cores: ranks will be stopped in mid-step and MFU reads low. Narrow the cores with taskset.");
}

void peaks(Report& report) {
  const MatrixPeak peak = matrix_peak(std::getenv("BELLOWS_PEAK_F32"), std::getenv("BELLOWS_PEAK_BF16"));
  const auto cores = static_cast<double>(cpu_info().allowed.size());
  report.section("Matrix product peak");
  report.line("float32", fixed(peak.f32 * 1e-9, 1) + " GFLOP/s a core",
              fixed(peak.f32 * cores * 1e-9, 1) + " in all; " + peak.f32_how);
  report.line("bfloat16", fixed(peak.bf16 * 1e-9, 1) + " GFLOP/s a core",
              fixed(peak.bf16 * cores * 1e-9, 1) + " in all; " + peak.bf16_how);
  report.json()["peak"] = {{"f32_flops_per_core", peak.f32},
                           {"f32_how", peak.f32_how},
                           {"bf16_flops_per_core", peak.bf16},
                           {"bf16_how", peak.bf16_how}};
}

void memory(Report& report) {
  const Device::Memory memory = cpu_device().memory();
  const MemoryBandwidth bandwidth = measure_memory_bandwidth();
  const std::string huge = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  const std::string shmem = first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  report.section("Memory");
  report.line("free", human_bytes(static_cast<double>(memory.free)),
              "of " + human_bytes(static_cast<double>(memory.total)));
  report.line("copy", fixed(bandwidth.copy * 1e-9, 1) + " GB/s", "read + written, by all allowed cores");
  report.line("triad", fixed(bandwidth.triad * 1e-9, 1) + " GB/s");
  const auto chosen = [](const std::string& setting) {
    const std::size_t begin = setting.find('['), end = setting.find(']');
    return begin == setting.npos || end == setting.npos ? std::string("unknown")
                                                        : setting.substr(begin + 1, end - begin - 1);
  };
  report.line("huge pages", chosen(huge),
              "in shared memory: " + chosen(shmem) + (chosen(shmem) == "never" ? ", collapsed on request" : ""));
  report.json()["memory"] = {{"total_bytes", memory.total},        {"free_bytes", memory.free},
                             {"copy_gbps", bandwidth.copy * 1e-9}, {"triad_gbps", bandwidth.triad * 1e-9},
                             {"huge_pages", chosen(huge)},         {"shared_huge_pages", chosen(shmem)}};
  if (chosen(huge) == "never")
    report.warn(
        "Transparent huge pages are off: starting takes longer and memory is slower. As root: echo madvise > "
        "/sys/kernel/mm/transparent_hugepage/enabled");
}

void gpus(Report& report) {
  report.section("GPUs");
  Json all = Json::array();
  const auto& devices = cuda_devices();
  if (!devices) report.line("CUDA", "none", devices.error());
  for (Device* device : devices ? devices.value() : std::vector<Device*>{}) {
    const Device::Memory memory = device->memory();
    const auto peak = gpu_dense_peak(device->name(), PeakType::kBF16);
    report.line("GPU " + std::to_string(device->index()), device->name(),
                human_bytes(static_cast<double>(memory.free)) + " free; bf16 peak " +
                    (peak ? fixed(*peak * 1e-12, 1) + " TFLOP/s" : "unknown: MFU will be unavailable"));
    all.push_back({{"index", device->index()},
                   {"name", device->name()},
                   {"free_bytes", memory.free},
                   {"total_bytes", memory.total},
                   {"bf16_peak_flops", peak ? Json(*peak) : Json(nullptr)}});
  }
  report.json()["gpus"] = all;
  report.json()["gpu_note"] = devices ? "" : devices.error();
}

// The tree of the host, as wide as it is; the file that --topology takes has the same as JSON.
void topology(Report& report, const std::string& record_file) {
  Topology recorded;
  recorded.hosts = {this_host()};
  report.section("Topology");
  report.indented(picture(this_host()));
  report.json()["topology"] = Json::parse(to_json(recorded));
  if (record_file.empty()) return;
  std::ofstream out(record_file);
  out << to_json(recorded);
  if (!out.flush()) throw UserError("--record " + record_file + ": cannot write it");
}

void all_transports(Report& report) {
  report.section("Transports");
  Json all = Json::array();
  for (const TransportInfo& transport : transports()) {
    report.line(transport.name, transport.usable ? "usable" : "not usable", transport.note);
    all.push_back({{"name", transport.name}, {"usable", transport.usable}, {"note", transport.note}});
  }
  report.line("mpirun", BELLOWS_DOCTOR_MPI ? "usable" : "not usable",
              BELLOWS_DOCTOR_MPI ? "mpirun -n N PROG joins over MPI" : "no MPI was found when this was built");
  report.json()["transports"] = all;
  report.json()["mpirun"] = BELLOWS_DOCTOR_MPI != 0;
}

std::string limit_text(rlim_t value, bool bytes) {
  if (value == RLIM_INFINITY) return "unlimited";
  return bytes ? human_bytes(static_cast<double>(value)) : std::to_string(value);
}
Json limit_json(rlim_t value) { return value == RLIM_INFINITY ? Json("unlimited") : Json(value); }

// Memory that the control group still grants, if it limits it: shared memory (memfd) counts there, not in /dev/shm.
std::optional<double> group_memory() {
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    double bytes = 0;
    if (std::ifstream(path) >> bytes && bytes < 1e18) return bytes;
  }
  return std::nullopt;
}

void limits(Report& report) {
  struct rlimit files {
  }, locked{}, processes{};
  getrlimit(RLIMIT_NOFILE, &files);
  getrlimit(RLIMIT_MEMLOCK, &locked);
  getrlimit(RLIMIT_NPROC, &processes);
  struct statvfs shm {};
  const bool has_shm = statvfs("/dev/shm", &shm) == 0;
  const double shm_bytes = has_shm ? static_cast<double>(shm.f_blocks) * static_cast<double>(shm.f_frsize) : 0;
  const auto group = group_memory();

  report.section("Limits");
  report.line("open files", limit_text(files.rlim_cur, false), "at most " + limit_text(files.rlim_max, false));
  report.line("locked memory", limit_text(locked.rlim_cur, true), "used by GPUs and InfiniBand only");
  report.line("processes", limit_text(processes.rlim_cur, false));
  report.line("/dev/shm", has_shm ? human_bytes(shm_bytes) : "missing", "not used: shared memory is anonymous");
  report.line("memory, group", group ? human_bytes(*group) : "unlimited", "shared memory counts here");
  report.json()["limits"] = {{"open_files", limit_json(files.rlim_cur)},
                             {"locked_memory_bytes", limit_json(locked.rlim_cur)},
                             {"processes", limit_json(processes.rlim_cur)},
                             {"dev_shm_bytes", shm_bytes},
                             {"group_memory_bytes", group ? Json(*group) : Json(nullptr)}};

  if (files.rlim_cur != RLIM_INFINITY && files.rlim_cur < 1024)
    report.warn("Only " + std::to_string(files.rlim_cur) +
                " open files: jobs of more than a few dozen ranks a host will fail to connect. ulimit -n 65536");
  const bool pins_memory = cuda_devices().ok() || std::filesystem::exists("/sys/class/infiniband");
  if (pins_memory && locked.rlim_cur != RLIM_INFINITY && locked.rlim_cur < (rlim_t{64} << 20))
    report.warn("Only " + human_bytes(static_cast<double>(locked.rlim_cur)) +
                " of locked memory: GPUs and InfiniBand need page-locked buffers. ulimit -l unlimited");
  if (processes.rlim_cur != RLIM_INFINITY && processes.rlim_cur < 512)
    report.warn("Only " + std::to_string(processes.rlim_cur) + " processes and threads: ulimit -u 4096");
  if (group && *group < static_cast<double>(std::size_t{2} << 30))
    report.warn("The control group allows " + human_bytes(*group) +
                " of memory, shared memory included: larger models will be killed. Raise the container's limit.");
}

}  // namespace

int doctor_main(int argc, char** argv) {
  return run_main([&] {
    bool json = false;
    std::string record;
    Settings settings("bellows doctor", "what this host and this build offer, and which limits will hurt");
    settings.add("json", &json, "one object instead of a page");
    settings.add("record", &record, "write this host's topology to a file for bellows run --topology")
        .value_name("FILE");
    // Variables of other commands may be set here; the doctor only looks.
    settings.leave_unknown();
    if (!settings.parse(argc, argv)) return 0;

    Report report;
    processor(report);
    peaks(report);
    memory(report);
    gpus(report);
    topology(report, record);
    all_transports(report);
    limits(report);
    std::fputs((json ? report.json_text() : report.text()).c_str(), stdout);
    return 0;
  });
}

}  // namespace bellows
