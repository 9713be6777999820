// Multiply-add loops on registers. Each has as many independent chains as hide the latency of its instruction; one call
// does `rounds` rounds and returns how many FLOPs they were.
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "bellows/base/clock.h"
#include "bellows/base/error.h"
#include "bellows/base/hardware.h"
#include "hardware/per_core.h"

namespace bellows {
namespace {

struct Kernel {
  double (*run)(int rounds);
  const char* how;
};

// Twelve chains hide the latency of two units that take four to six cycles. They are named variables, not an array: an
// array would live in memory, and the loop would measure loads and stores.
#define BELLOWS_TWELVE(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)
constexpr int kChains = 12;

// The empty asm tells the compiler that the value is used and may have changed: nothing can be worked out early.
#define BELLOWS_ZERO(i) auto s##i = zero;
#define BELLOWS_STEP(i)    \
  s##i = BELLOWS_OP(s##i); \
  asm volatile("" : "+v"(s##i));

__attribute__((target("avx512f"))) double fma_avx512(int rounds) {
  const __m512 zero = _mm512_setzero_ps(), a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
#define BELLOWS_OP(s) _mm512_fmadd_ps(s, a, b)
  BELLOWS_TWELVE(BELLOWS_ZERO)
  for (int r = 0; r < rounds; ++r) {
    BELLOWS_TWELVE(BELLOWS_STEP)
  }
#undef BELLOWS_OP
  return 2.0 * 16 * kChains * rounds;
}

__attribute__((target("avx2,fma"))) double fma_avx2(int rounds) {
  const __m256 zero = _mm256_setzero_ps(), a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
#define BELLOWS_OP(s) _mm256_fmadd_ps(s, a, b)
  BELLOWS_TWELVE(BELLOWS_ZERO)
  for (int r = 0; r < rounds; ++r) {
    BELLOWS_TWELVE(BELLOWS_STEP)
  }
#undef BELLOWS_OP
  return 2.0 * 8 * kChains * rounds;
}

double multiply_add_sse(int rounds) {
  const __m128 zero = _mm_setzero_ps(), a = _mm_set1_ps(0.999f), b = _mm_set1_ps(0.001f);
#define BELLOWS_OP(s) _mm_add_ps(_mm_mul_ps(s, a), b)
  BELLOWS_TWELVE(BELLOWS_ZERO)
  for (int r = 0; r < rounds; ++r) {
    BELLOWS_TWELVE(BELLOWS_STEP)
  }
#undef BELLOWS_OP
  return 2.0 * 4 * kChains * rounds;
}

__attribute__((target("avx512f,avx512bf16"))) double dot_avx512_bf16(int rounds) {
  const __m512 zero = _mm512_setzero_ps(), quarter = _mm512_set1_ps(0.25f);
  const __m512bh a = _mm512_cvtne2ps_pbh(quarter, quarter);
#define BELLOWS_OP(s) _mm512_dpbf16_ps(s, a, a)
  BELLOWS_TWELVE(BELLOWS_ZERO)
  for (int r = 0; r < rounds; ++r) {
    BELLOWS_TWELVE(BELLOWS_STEP)
  }
#undef BELLOWS_OP
  return 2.0 * 32 * kChains * rounds;
}
#undef BELLOWS_STEP
#undef BELLOWS_ZERO
#undef BELLOWS_TWELVE

// Tiles of 16 x 32 bfloat16: the kernel must first grant a process the use of tile registers.
bool amx_granted() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

__attribute__((target("amx-tile,amx-bf16"))) double dot_amx_bf16(int rounds) {
  struct alignas(64) {
    unsigned char palette = 1, start_row = 0, reserved[14] = {};
    unsigned short bytes_per_row[16] = {};
    unsigned char rows[16] = {};
  } config;
  static_assert(sizeof config == 64);
  for (int tile = 0; tile < 8; ++tile) config.bytes_per_row[tile] = 64, config.rows[tile] = 16;
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int r = 0; r < rounds; ++r) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 2.0 * 16 * 16 * 32 * 4 * rounds;
}

Kernel f32_kernel(const CpuInfo& cpu) {
  if (cpu.avx512) return {fma_avx512, "AVX-512 FMA"};
  if (cpu.avx2) return {fma_avx2, "AVX2 FMA"};
  return {multiply_add_sse, "SSE multiply and add"};
}

Kernel bf16_kernel(const CpuInfo& cpu) {
  if (cpu.amx_bf16 && amx_granted()) return {dot_amx_bf16, "AMX bf16 tiles"};
  if (cpu.avx512_bf16) return {dot_avx512_bf16, "AVX-512 bf16 dot products"};
  return {nullptr, "no bf16 instructions: the f32 peak"};
}

// Mean over the cores of each core's best window.
double per_core(const Kernel& kernel, const std::vector<int>& cores, double seconds_in_all) {
  std::vector<double> best(cores.size(), 0.0);
  run_on_cores(cores, [&](std::size_t i) {
    constexpr double kWindow_s = 0.5e-3;  // short against a time slice: some window runs undisturbed
    int rounds = 1000;
    for (const Nanos end = now_ns() + from_seconds(seconds_in_all); now_ns() < end;) {
      const Nanos begin = now_ns();
      const double flops = kernel.run(rounds);
      const double took = seconds(std::max<Nanos>(now_ns() - begin, 1));
      if (took < kWindow_s / 2) {
        rounds *= 2;
      } else {
        best[i] = std::max(best[i], flops / took);
      }
    }
  });
  return std::accumulate(best.begin(), best.end(), 0.0) / static_cast<double>(cores.size());
}

std::optional<double> given(const char* name, const char* value) {
  if (!value) return std::nullopt;
  char* end = nullptr;
  const double peak = std::strtod(value, &end);
  if (end == value || *end != 0 || !(peak > 0) || peak > 1e18)
    throw UserError(std::string(name) + "='" + value + "' is not a peak in FLOP/s of one core, such as 1.2e11");
  return peak;
}

MatrixPeak measure(double seconds_per_dtype, bool want_f32, bool want_bf16) {
  const CpuInfo cpu = cpu_info();
  const Kernel f32 = f32_kernel(cpu), bf16 = bf16_kernel(cpu);
  MatrixPeak peak;
  peak.f32_how = f32.how;
  peak.bf16_how = bf16.how;
  if (want_f32 || (want_bf16 && !bf16.run)) peak.f32 = per_core(f32, cpu.allowed, seconds_per_dtype);
  if (want_bf16) peak.bf16 = bf16.run ? per_core(bf16, cpu.allowed, seconds_per_dtype) : peak.f32;
  return peak;
}

}  // namespace

MatrixPeak measure_matrix_peak(double seconds_per_dtype) { return measure(seconds_per_dtype, true, true); }

MatrixPeak matrix_peak(const char* given_f32, const char* given_bf16) {
  const auto f32 = given("BELLOWS_PEAK_F32", given_f32), bf16 = given("BELLOWS_PEAK_BF16", given_bf16);
  MatrixPeak peak;
  if (!f32 || !bf16) peak = measure(0.08, !f32, !bf16);
  if (f32) peak.f32 = *f32, peak.f32_how = "given by BELLOWS_PEAK_F32";
  if (bf16) peak.bf16 = *bf16, peak.bf16_how = "given by BELLOWS_PEAK_BF16";
  return peak;
}

double cpu_peak_share(double per_core_peak, int allowed_cores, int local_ranks, int threads_per_rank) {
  BELLOWS_CHECK(allowed_cores > 0 && local_ranks > 0 && threads_per_rank > 0);
  return per_core_peak * std::min(allowed_cores, local_ranks * threads_per_rank) / local_ranks;
}

}  // namespace bellows
