#include "peak.h"

#include <cstdlib>
#include <string>

#include "bellows/base/hardware.h"

namespace bellows {

std::optional<double> rank_peak(const World& world, DType dtype, int threads) {
  static const MatrixPeak per_core = matrix_peak(std::getenv("BELLOWS_PEAK_F32"), std::getenv("BELLOWS_PEAK_BF16"));
  const CpuInfo cpu = cpu_info();
  int cores = static_cast<int>(cpu.allowed.size());
  if (cpu.quota && *cpu.quota >= 1 && *cpu.quota < cores) cores = static_cast<int>(*cpu.quota);
  const double peak = dtype == DType::kBF16 ? per_core.bf16 : per_core.f32;
  if (!(peak > 0) || cores < 1) return std::nullopt;
  return cpu_peak_share(peak, cores, world.local_size, threads);
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
