#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "bellows/base/dtype.h"

namespace gpt {

/// Sixteen floats that are worked on together: one AVX-512 register, or several narrower ones where the compiler has
/// only those. Sums over lanes are one fixed tree, so a result does not depend on alignment or on who computes it.
typedef float Vec __attribute__((vector_size(64)));
typedef std::int32_t VecInt __attribute__((vector_size(64)));
constexpr int kLanes = 16;

using Full = std::integral_constant<int, kLanes>;  ///< "all lanes", known when compiling

/// Calls f(i, n) for stretches [i, i + n) of [0, count): n is Full, and an int below 16 for the rest.
template <class F>
inline __attribute__((always_inline)) void each_vec(long count, F&& f) {
  long i = 0;
  for (; i + kLanes <= count; i += kLanes) f(i, Full{});
  if (i < count) f(i, static_cast<int>(count - i));
}

inline __attribute__((always_inline)) Vec broadcast(float x) { return Vec{} + x; }

inline __attribute__((always_inline)) Vec load(const float* p, Full = {}) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline __attribute__((always_inline)) Vec load(const bellows::bf16* p, Full = {}) {
  typedef std::uint16_t Half __attribute__((vector_size(32)));
  Half h;
  std::memcpy(&h, p, sizeof h);
  const VecInt wide = __builtin_convertvector(h, VecInt) << 16;
  Vec v;
  std::memcpy(&v, &wide, sizeof v);
  return v;
}
#if defined(__AVX512F__)
inline __attribute__((always_inline)) __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1); }
#endif
/// The first n lanes; the others are zero.
template <class T>
inline __attribute__((always_inline)) Vec load(const T* p, int n) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (sizeof(T) == 4) {
    return reinterpret_cast<Vec>(_mm512_maskz_loadu_ps(first_lanes(n), p));
  } else {
    T lanes[kLanes];
    const __m256i half = _mm256_maskz_loadu_epi16(first_lanes(n), p);
    std::memcpy(static_cast<void*>(lanes), &half, sizeof half);
    return load(lanes);
  }
#else
  T lanes[kLanes] = {};
  std::memcpy(static_cast<void*>(lanes), p, n * sizeof(T));
  return load(lanes);
#endif
}

inline __attribute__((always_inline)) void store(float* p, Vec v, Full = {}) { std::memcpy(p, &v, sizeof v); }
inline __attribute__((always_inline)) void store(bellows::bf16* p, Vec v, Full = {}) {
#if defined(__AVX512BF16__)
  const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_setzero_ps(), reinterpret_cast<__m512>(v));
  std::memcpy(static_cast<void*>(p), &both, 32);
#else
  for (int i = 0; i < kLanes; ++i) p[i] = bellows::bf16(v[i]);
#endif
}
template <class T>
inline __attribute__((always_inline)) void store(T* p, Vec v, int n) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (sizeof(T) == 4) {
    _mm512_mask_storeu_ps(p, first_lanes(n), reinterpret_cast<__m512>(v));
  } else {
    T lanes[kLanes];
    store(lanes, v);
    __m256i half;
    std::memcpy(&half, lanes, sizeof half);
    _mm256_mask_storeu_epi16(p, first_lanes(n), half);
  }
#else
  T lanes[kLanes];
  store(lanes, v);
  std::memcpy(static_cast<void*>(p), lanes, n * sizeof(T));
#endif
}

/// a * b + c: fused where the processor can.
inline __attribute__((always_inline)) Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(
      _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#else
  return a * b + c;
#endif
}
/// The larger of each pair; b where one of them is not a number.
inline __attribute__((always_inline)) Vec larger(Vec a, Vec b) { return a > b ? a : b; }
inline __attribute__((always_inline)) Vec smaller(Vec a, Vec b) { return a < b ? a : b; }

inline __attribute__((always_inline)) float lane_sum(Vec v) {
  typedef float V8 __attribute__((vector_size(32)));
  typedef float V4 __attribute__((vector_size(16)));
  V8 halves[2];
  std::memcpy(halves, &v, sizeof v);
  const V8 eight = halves[0] + halves[1];
  V4 quarters[2];
  std::memcpy(quarters, &eight, sizeof eight);
  const V4 four = quarters[0] + quarters[1];
  return (four[0] + four[2]) + (four[1] + four[3]);
}
inline __attribute__((always_inline)) float lane_max(Vec v) {
  typedef float V8 __attribute__((vector_size(32)));
  typedef float V4 __attribute__((vector_size(16)));
  V8 halves[2];
  std::memcpy(halves, &v, sizeof v);
  const V8 eight = halves[0] > halves[1] ? halves[0] : halves[1];
  V4 quarters[2];
  std::memcpy(quarters, &eight, sizeof eight);
  const V4 four = quarters[0] > quarters[1] ? quarters[0] : quarters[1];
  const float even = four[0] > four[2] ? four[0] : four[2], odd = four[1] > four[3] ? four[1] : four[3];
  return even > odd ? even : odd;
}
/// v with the lanes from n on set to `rest`.
inline __attribute__((always_inline)) Vec keep(Vec v, Full, float = 0) { return v; }
inline __attribute__((always_inline)) Vec keep(Vec v, int n, float rest = 0) {
  const VecInt lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lane < n ? v : broadcast(rest);
}

/// e^x, relative error below 3e-7 for x in [-87, 88]; 0 (or a number below 1e-37) under that, very large or infinite
/// over it; NaN stays NaN. x = n ln 2 + r with |r| <= ln(2)/2, then Taylor's series of e^r to r^6, times 2^n.
inline __attribute__((always_inline)) Vec exp(Vec x) {
#if defined(__AVX512F__)
  // The zero-masking forms: g++-12 takes the plain ones for reads of an uninitialised register.
  constexpr __mmask16 kAll = 0xffff;
  const Vec v = larger(broadcast(-120.0f), x);
  const Vec n = reinterpret_cast<Vec>(_mm512_maskz_roundscale_ps(
      kAll, reinterpret_cast<__m512>(v * broadcast(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  const Vec low = broadcast(-87.0f), high = broadcast(88.0f);
  const Vec v = smaller(high, larger(low, x));  // a NaN in x passes both
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const Vec magic = broadcast(12582912.0f);
  const Vec shifted = fma(v, broadcast(1.44269504f), magic);
  const Vec n = shifted - magic;
#endif
  Vec r = fma(n, broadcast(-0.693359375f), v);  // exact: few bits in the constant
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vec p = broadcast(1.0f / 720);
  p = fma(p, r, broadcast(1.0f / 120));
  p = fma(p, r, broadcast(1.0f / 24));
  p = fma(p, r, broadcast(1.0f / 6));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_maskz_scalef_ps(kAll, reinterpret_cast<__m512>(p), reinterpret_cast<__m512>(n)));
#else
  VecInt bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits - 0x4b400000 + 127) << 23;
  Vec power;
  std::memcpy(&power, &bits, sizeof power);
  return x < low ? Vec{} : p * power;
#endif
}

/// 1 / (1 + e^-x)
inline __attribute__((always_inline)) Vec sigmoid(Vec x) { return broadcast(1.0f) / (broadcast(1.0f) + exp(-x)); }

}  // namespace gpt
