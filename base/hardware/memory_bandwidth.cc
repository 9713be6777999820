#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "bellows/base/check.h"
#include "bellows/base/clock.h"
#include "bellows/base/hardware.h"
#include "bellows/base/memory.h"
#include "hardware/per_core.h"

namespace bellows {
namespace {

__attribute__((target("avx512f"))) std::size_t triad_avx512(float* out, const float* b, const float* c, float scale,
                                                            std::size_t n) {
  const __m512 s = _mm512_set1_ps(scale);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16)
    _mm512_stream_ps(out + i, _mm512_add_ps(_mm512_loadu_ps(b + i), _mm512_mul_ps(s, _mm512_loadu_ps(c + i))));
  return i;
}

std::size_t triad_sse(float* out, const float* b, const float* c, float scale, std::size_t n) {
  const __m128 s = _mm_set1_ps(scale);
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4)
    _mm_stream_ps(out + i, _mm_add_ps(_mm_loadu_ps(b + i), _mm_mul_ps(s, _mm_loadu_ps(c + i))));
  return i;
}

__attribute__((target("avx512f"))) std::size_t copy_avx512(float* out, const float* in, std::size_t n) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) _mm512_stream_ps(out + i, _mm512_loadu_ps(in + i));
  return i;
}

std::size_t copy_sse(float* out, const float* in, std::size_t n) {
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) _mm_stream_ps(out + i, _mm_loadu_ps(in + i));
  return i;
}

bool avx512() {
  static const bool has = __builtin_cpu_supports("avx512f");
  return has;
}

bool aligned(const float* p) { return reinterpret_cast<std::uintptr_t>(p) % 64 == 0; }

// Seconds of the fastest of several passes, all cores each with its own interval.
template <class Pass>
double best_pass(const std::vector<int>& cores, std::size_t n, const Pass& pass) {
  const std::size_t piece = (n / cores.size()) / 16 * 16;
  double best = 1e30;
  for (int repeat = 0; repeat < 7; ++repeat) {
    std::vector<std::pair<Nanos, Nanos>> spans(cores.size());
    run_on_cores(cores, [&](std::size_t i) {
      const Nanos begin = now_ns();
      pass(i * piece, piece);
      spans[i] = {begin, now_ns()};
    });
    Nanos first = spans[0].first, last = spans[0].second;
    for (const auto& [begin, end] : spans) first = std::min(first, begin), last = std::max(last, end);
    best = std::min(best, seconds(std::max<Nanos>(last - first, 1)));
  }
  return best;
}

}  // namespace

void stream_triad(std::span<float> out, std::span<const float> b, std::span<const float> c, float scale) {
  BELLOWS_CHECK(b.size() == out.size() && c.size() == out.size() && aligned(out.data()));
  std::size_t i = (avx512() ? triad_avx512 : triad_sse)(out.data(), b.data(), c.data(), scale, out.size());
  for (; i < out.size(); ++i) out[i] = b[i] + scale * c[i];
  _mm_sfence();
}

void stream_copy(std::span<float> out, std::span<const float> in) {
  BELLOWS_CHECK(in.size() == out.size() && aligned(out.data()));
  std::size_t i = (avx512() ? copy_avx512 : copy_sse)(out.data(), in.data(), out.size());
  for (; i < out.size(); ++i) out[i] = in[i];
  _mm_sfence();
}

MemoryBandwidth measure_memory_bandwidth(std::size_t bytes_per_array) {
  const std::vector<int> cores = cpu_info().allowed;
  const std::size_t n = std::max<std::size_t>(bytes_per_array / sizeof(float), 16 * cores.size());
  const HostMemory memory[3] = {HostMemory(n * sizeof(float)), HostMemory(n * sizeof(float)),
                                HostMemory(n * sizeof(float))};
  const std::span<float> a = memory[0].as<float>(), b = memory[1].as<float>(), c = memory[2].as<float>();
  const double bytes = static_cast<double>(n / cores.size() / 16 * 16 * cores.size() * sizeof(float));
  const double copy_s = best_pass(
      cores, n, [&](std::size_t at, std::size_t count) { stream_copy(a.subspan(at, count), b.subspan(at, count)); });
  const double triad_s = best_pass(cores, n, [&](std::size_t at, std::size_t count) {
    stream_triad(a.subspan(at, count), b.subspan(at, count), c.subspan(at, count), 0.5f);
  });
  return {2 * bytes / copy_s, 3 * bytes / triad_s, static_cast<int>(cores.size())};
}

}  // namespace bellows
