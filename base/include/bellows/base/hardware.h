#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bellows {

/// What this process may use of the host's processor.
struct CpuInfo {
  std::string model;            ///< "AMD EPYC ..."; "unknown" where the kernel does not say
  std::vector<int> allowed;     ///< logical cores of the affinity mask: containers and binding narrow it
  std::optional<double> quota;  ///< cores' worth of time that the control group allows, if it limits it
  int numa_nodes = 1;
  int physical_cores = 1;  ///< of the whole host
  bool avx2 = false, avx512 = false, avx512_bf16 = false, amx_bf16 = false;
};
CpuInfo cpu_info();

// ---- The peak of matrix products: the denominator of MFU ----

/// FLOP/s of one core while all allowed cores compute, measured by plain multiply-add loops on registers.
struct MatrixPeak {
  double f32 = 0;
  double bf16 = 0;
  std::string f32_how;  ///< "AVX-512 FMA", or that BELLOWS_PEAK_F32 gave it
  std::string bf16_how;
};

/// Takes about 2 x `seconds_per_dtype`, with one thread pinned to each allowed core. Each core counts with its best of
/// many short windows, so a noisy machine does not lower the peak.
MatrixPeak measure_matrix_peak(double seconds_per_dtype = 0.08);

/// As measured, or given for one core by BELLOWS_PEAK_F32 and BELLOWS_PEAK_BF16 (FLOP/s): what is given is not
/// measured. Throws UserError for a value that is not a number above 0.
MatrixPeak matrix_peak(const char* given_f32, const char* given_bf16);

/// The peak that one rank is held against where `local_ranks` ranks of `threads_per_rank` threads share a host: more
/// threads than cores do not add up to more than the cores, and idle cores that no thread could use do not count.
double cpu_peak_share(double per_core_peak, int allowed_cores, int local_ranks, int threads_per_rank);

enum class PeakType { kF64, kF32, kTF32, kF16, kBF16, kF8 };

/// Dense peak of a GPU in FLOP/s by its exact device name; nothing for a name or dtype that is not in the table.
std::optional<double> gpu_dense_peak(std::string_view device_name, PeakType type);

// ---- Memory bandwidth ----

/// Bytes per second of all allowed cores together; copy counts 2 and triad 3 streams, as STREAM does.
struct MemoryBandwidth {
  double copy = 0;
  double triad = 0;
  int threads = 0;
};
/// Best of several passes over arrays of `bytes_per_array` on huge pages; it should exceed the last-level cache.
MemoryBandwidth measure_memory_bandwidth(std::size_t bytes_per_array = std::size_t{128} << 20);

/// out = b + scale * c with non-temporal stores: the yardstick of what memory can do. Spans of equal length, `out`
/// aligned to 64 bytes.
void stream_triad(std::span<float> out, std::span<const float> b, std::span<const float> c, float scale);
/// out = in with non-temporal stores; the same rules.
void stream_copy(std::span<float> out, std::span<const float> in);

}  // namespace bellows
