#include "peak.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "bellows/base/hardware.h"

namespace bellows {

std::optional<double> rank_peak(const World& world, DType dtype, int threads) {
  static const MatrixPeak per_core = matrix_peak(std::getenv("BELLOWS_PEAK_F32"), std::getenv("BELLOWS_PEAK_BF16"));
  const CpuInfo cpu = cpu_info();
  const auto limited = [&](int cores) {
    return cpu.quota && *cpu.quota >= 1 && *cpu.quota < cores ? static_cast<int>(*cpu.quota) : cores;
  };
  const int allowed = static_cast<int>(cpu.allowed.size());
  // A rank that the launcher bound sees its own cores only; how many all ranks of the host have it is told.
  const char* told = std::getenv("BELLOWS_SPAWN_CORES");
  const int own = limited(allowed), shared = limited(std::max(allowed, told ? std::atoi(told) : 0));
  const double peak = dtype == DType::kBF16 ? per_core.bf16 : per_core.f32;
  if (!(peak > 0) || own < 1) return std::nullopt;
  return std::min(cpu_peak_share(peak, shared, world.local_size, threads), peak * own);
}

std::optional<double> world_peak(Communicator& comm, std::optional<double> mine) {
  double sum = 0;
  for (const std::string& text : comm.all_gather_blobs(mine ? std::to_string(*mine) : "", "peak of the world")) {
    if (text.empty()) return std::nullopt;
    sum += std::stod(text);
  }
  return sum;
}

}  // namespace bellows
