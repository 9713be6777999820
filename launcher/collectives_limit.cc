#include <algorithm>
#include <cstring>

#include "collectives_bench.h"
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace bellows {
namespace {

// The sum of `parts` arrays of n floats that stand one behind the other, written to `places` arrays alike. Adding
// floats stands for any type of elements: it is the bytes that take the time.
void plain_sum(float* __restrict out, const float* in, std::size_t parts, std::size_t places, std::size_t n) {
  for (std::size_t begin = 0; begin < n; begin += 2048) {  // in pieces that stay in the first-level cache
    const std::size_t end = std::min(n, begin + 2048);
    if (parts == 2) {
      for (std::size_t i = begin; i < end; ++i) out[i] = in[i] + in[n + i];
    } else if (parts == 4) {
      for (std::size_t i = begin; i < end; ++i) out[i] = (in[i] + in[n + i]) + (in[2 * n + i] + in[3 * n + i]);
    } else {
      for (std::size_t i = begin; i < end; ++i) out[i] = in[i];
      for (std::size_t p = 1; p < parts; ++p)
        for (std::size_t i = begin; i < end; ++i) out[i] += in[p * n + i];
    }
    for (std::size_t p = 1; p < places; ++p)
      std::memcpy(out + p * n + begin, out + begin, (end - begin) * sizeof(float));
  }
}

#if defined(__AVX512F__)
void streaming_sum(float* out, const float* in, std::size_t parts, std::size_t places, std::size_t n) {
  for (std::size_t i = 0; i + 16 <= n; i += 16) {
    __m512 sum = _mm512_loadu_ps(in + i);
    for (std::size_t p = 1; p < parts; ++p) sum = _mm512_add_ps(sum, _mm512_loadu_ps(in + p * n + i));
    for (std::size_t p = 0; p < places; ++p) _mm512_stream_ps(out + p * n + i, sum);
  }
  _mm_sfence();
}
#endif

}  // namespace

bool run_limit(const std::string& op, std::byte* output, const std::byte* input, std::size_t bytes, std::size_t ranks,
               bool streaming) {
  // Whole vectors of the streaming loop, so that both kinds move the same.
  const std::size_t chunk = bytes / ranks / sizeof(float) / 16 * 16;
  float* const out = reinterpret_cast<float*>(output);
  const float* const in = reinterpret_cast<const float*>(input);
  const auto sum = [&](float* to, const float* from, std::size_t parts, std::size_t places, std::size_t n) {
#if defined(__AVX512F__)
    if (streaming) return streaming_sum(to, from, parts, places, n);
#endif
    plain_sum(to, from, parts, places, n);
  };
#if !defined(__AVX512F__)
  if (streaming) return false;
#endif
  if (chunk == 0) return !streaming;
  if (op == "reduce_scatter") sum(out, in, ranks, 1, chunk);
  if (op == "all_gather") sum(out + chunk, in + chunk, 1, 1, chunk * (ranks - 1));
  if (op == "all_reduce") sum(out, in, ranks, ranks, chunk);
  return true;
}

}  // namespace bellows
