#pragma once
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "bellows/base/dtype.h"

namespace bellows {

// Sixteen elements as floats: the unit of all arithmetic of a fold, for vector bodies and tails alike. `Lane<T>` loads
// them from their storage type, rounds to it, and stores them, by way of the caches or (`stream`) past them.

using Vec = float __attribute__((vector_size(64)));
using Bits = std::uint32_t __attribute__((vector_size(64)));
inline constexpr std::size_t kWidth = 16;

template <class T>
struct Lane;

template <>
struct Lane<float> {
  static Vec load(const float* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static Vec round(Vec v) { return v; }
  static void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
  static void stream(float* p, Vec v) {
#if defined(__AVX512F__)
    _mm512_stream_ps(p, reinterpret_cast<__m512>(v));
#else
    store(p, v);
#endif
  }
};

template <>
struct Lane<bf16> {
  using Half = std::uint16_t __attribute__((vector_size(32)));
  static Vec load(const bf16* p) {
    Half h;
    std::memcpy(&h, p, sizeof h);
    return reinterpret_cast<Vec>(__builtin_convertvector(h, Bits) << 16);
  }
  // As bf16(float) of base/dtype.h, on sixteen at once; the low half of the result is zero.
  static Vec round(Vec v) {
    const Bits u = reinterpret_cast<Bits>(v);
    const Bits rounded = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
    const Bits quiet = (u & 0xffff0000u) | 0x400000u;
    const Bits nan = reinterpret_cast<Bits>((u & 0x7fffffffu) > 0x7f800000u);
    return reinterpret_cast<Vec>((nan & quiet) | (~nan & rounded));
  }
  static void store(bf16* p, Vec v) {
    const Half h = __builtin_convertvector(reinterpret_cast<Bits>(v) >> 16, Half);
    std::memcpy(static_cast<void*>(p), &h, sizeof h);
  }
  static void stream(bf16* p, Vec v) {
#if defined(__AVX512F__)
    const Half h = __builtin_convertvector(reinterpret_cast<Bits>(v) >> 16, Half);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(h));
#else
    store(p, v);
#endif
  }
};

template <>
struct Lane<f16> {
#if defined(__AVX512F__)
  static Vec load(const f16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  // The forms with a full mask: in g++ 12 the plain ones read a variable that nobody sets.
  static Vec widen(__m256i h) { return reinterpret_cast<Vec>(_mm512_maskz_cvtph_ps(0xffff, h)); }
  static __m256i half(Vec v) {
    return _mm512_maskz_cvtps_ph(0xffff, reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vec round(Vec v) { return widen(half(v)); }
  static void store(f16* p, Vec v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half(v)); }
  static void stream(f16* p, Vec v) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), half(v)); }
#else
  static Vec load(const f16* p) {
    Vec v;
    for (std::size_t i = 0; i < kWidth; ++i) v[i] = static_cast<float>(p[i]);
    return v;
  }
  static Vec round(Vec v) {
    for (std::size_t i = 0; i < kWidth; ++i) v[i] = static_cast<float>(f16(v[i]));
    return v;
  }
  static void store(f16* p, Vec v) {
    for (std::size_t i = 0; i < kWidth; ++i) p[i] = f16(v[i]);
  }
  static void stream(f16* p, Vec v) { store(p, v); }
#endif
};

/// One addition of the tree: rounded to the storage type.
template <class T>
Vec add(Vec a, Vec b) {
  return Lane<T>::round(a + b);
}

/// Orders what was streamed before whatever is stored next.
inline void finish_streaming() {
#if defined(__AVX512F__)
  _mm_sfence();
#endif
}

}  // namespace bellows
