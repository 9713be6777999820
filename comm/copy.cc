#include "copy.h"

#include <cstdint>
#include <cstring>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace bellows {

#if defined(__AVX512F__)
constexpr std::size_t kAheadBytes = 2048;
#endif

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, bool streaming) {
#if defined(__AVX512F__)
  if (streaming && bytes >= 4096) {
    const std::size_t head = (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64;
    std::memcpy(to, from, head);
    const std::size_t body = (bytes - head) / 256 * 256;
    for (std::size_t i = head; i < head + body; i += 256) {
      // Copies of this size read from main memory; asked for this early, lines are there when their turn comes.
      for (std::size_t line = 0; line < 256; line += 64) __builtin_prefetch(from + i + kAheadBytes + line);
      const __m512i a = _mm512_loadu_si512(from + i), b = _mm512_loadu_si512(from + i + 64);
      const __m512i c = _mm512_loadu_si512(from + i + 128), d = _mm512_loadu_si512(from + i + 192);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), a);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 64), b);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 128), c);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 192), d);
    }
    std::memcpy(to + head + body, from + head + body, bytes - head - body);
    _mm_sfence();
    return;
  }
#endif
  (void)streaming;
  if (bytes > 0) std::memcpy(to, from, bytes);  // empty parts may have no address
}

}  // namespace bellows
