#pragma once
#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "bellows/base/dtype.h"

// What one thread of a device does for its few elements of a fold: the same source for the host, where the tests hold
// it against run_fold, and for CUDA. Sums are made in float and rounded to the storage type at every node of the tree.
// A NaN stays one; its payload is nobody's promise.

namespace bellows {

/// A storage type as raw bits that come from memory, and its float.
template <class T>
struct Element;

template <>
struct Element<float> {
  using Stored = float;
  BELLOWS_HD static float widen(float v) { return v; }
  BELLOWS_HD static float narrow(float v) { return v; }
};

template <>
struct Element<bf16> {
  using Stored = std::uint16_t;
  BELLOWS_HD static float widen(std::uint16_t bits) {
    bf16 v;
    v.bits = bits;
    return static_cast<float>(v);
  }
  BELLOWS_HD static std::uint16_t narrow(float v) { return bf16(v).bits; }
};

// Both sides round to nearest even by an instruction of their own.
template <>
struct Element<f16> {
  using Stored = std::uint16_t;
  BELLOWS_HD static float widen(std::uint16_t bits) {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(bits));
#else
    f16::Storage v;
    std::memcpy(&v, &bits, sizeof v);
    return static_cast<float>(v);
#endif
  }
  BELLOWS_HD static std::uint16_t narrow(float v) {
#if defined(__CUDA_ARCH__)
    return __half_as_ushort(__float2half_rn(v));
#else
    const auto half = static_cast<f16::Storage>(v);
    std::uint16_t bits;
    std::memcpy(&bits, &half, sizeof bits);
    return bits;
#endif
  }
};

/// kWidth neighbouring elements as they stand in memory, at an address that is a multiple of their size.
template <class T, int kWidth>
struct alignas(kWidth * sizeof(T)) Pack {
  typename Element<T>::Stored stored[kWidth];
};
template <int kWidth>
struct Floats {
  float at[kWidth];
};

template <class T, int kWidth>
BELLOWS_HD inline Pack<T, kWidth> load_pack(const void* memory, std::size_t element) {
  const auto* place = static_cast<const std::byte*>(memory) + element * sizeof(T);
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const Pack<T, kWidth>*>(place);  // one load of up to 16 bytes
#else
  Pack<T, kWidth> pack;
  std::memcpy(&pack, place, sizeof pack);
  return pack;
#endif
}
template <class T, int kWidth>
BELLOWS_HD inline void store_pack(void* memory, std::size_t element, const Pack<T, kWidth>& pack) {
  auto* place = static_cast<std::byte*>(memory) + element * sizeof(T);
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<Pack<T, kWidth>*>(place) = pack;
#else
  std::memcpy(place, &pack, sizeof pack);
#endif
}

template <class T, int kWidth>
BELLOWS_HD inline Floats<kWidth> load_floats(const void* memory, std::size_t element) {
  const Pack<T, kWidth> pack = load_pack<T, kWidth>(memory, element);
  Floats<kWidth> v;
  for (int k = 0; k < kWidth; ++k) v.at[k] = Element<T>::widen(pack.stored[k]);
  return v;
}
template <class T, int kWidth>
BELLOWS_HD inline void store_floats(void* memory, std::size_t element, const Floats<kWidth>& v) {
  Pack<T, kWidth> pack;
  for (int k = 0; k < kWidth; ++k) pack.stored[k] = Element<T>::narrow(v.at[k]);
  store_pack<T, kWidth>(memory, element, pack);
}

/// One node of the tree.
template <class T, int kWidth>
BELLOWS_HD inline Floats<kWidth> add_floats(const Floats<kWidth>& a, const Floats<kWidth>& b) {
  Floats<kWidth> sum;
  for (int k = 0; k < kWidth; ++k) sum.at[k] = Element<T>::widen(Element<T>::narrow(a.at[k] + b.at[k]));
  return sum;
}

/// A balanced tree over sources [kFirst, kFirst + kCount): everything stays in registers.
template <class T, int kWidth, int kFirst, int kCount, class Sources>
BELLOWS_HD inline Floats<kWidth> balanced_sum(const Sources& sources, std::size_t element) {
  if constexpr (kCount == 1)
    return load_floats<T, kWidth>(sources[kFirst], element);
  else
    return add_floats<T, kWidth>(balanced_sum<T, kWidth, kFirst, kCount / 2>(sources, element),
                                 balanced_sum<T, kWidth, kFirst + kCount / 2, kCount / 2>(sources, element));
}

/// Any tree. `Tables` has `sources`, `results`, `ops`, `op_count`, `copies` and `copy_count` (see DeviceFold).
template <class T, int kWidth, int kSlots, class Tables>
BELLOWS_HD inline void fold_at(const Tables& tables, std::size_t element) {
  Floats<kWidth> slots[kSlots];
  for (int s = 0; s < tables.op_count; ++s) {
    const auto op = tables.ops[s];
    const Floats<kWidth> left =
        op.left >= 0 ? load_floats<T, kWidth>(tables.sources[op.left], element) : slots[~op.left];
    const Floats<kWidth> right =
        op.right >= 0 ? load_floats<T, kWidth>(tables.sources[op.right], element) : slots[~op.right];
    const Floats<kWidth> sum = add_floats<T, kWidth>(left, right);
    if (op.result >= 0)
      store_floats<T, kWidth>(tables.results[op.result], element, sum);
    else
      slots[op.slot] = sum;
  }
  for (int c = 0; c < tables.copy_count; ++c)
    store_pack<T, kWidth>(tables.results[tables.copies[c].result], element,
                          load_pack<T, kWidth>(tables.sources[tables.copies[c].source], element));
}

/// How `count` elements are given to threads: most in packs of 16 bytes, where all places allow that, and those before
/// the first and after the last pack one by one.
struct FoldCut {
  std::size_t head = 0;
  std::size_t packs = 0;
  std::size_t count = 0;
  int width = 1;  ///< elements of a pack; 1: the places do not stand alike to multiples of 16 bytes
  BELLOWS_HD std::size_t parts() const { return packs + count - packs * static_cast<std::size_t>(width); }
  /// Part `i` begins at this element; it is a pack if i < packs, else one element.
  BELLOWS_HD std::size_t element(std::size_t i) const {
    if (i < packs) return head + i * static_cast<std::size_t>(width);
    const std::size_t single = i - packs;
    return single < head ? single : single + packs * static_cast<std::size_t>(width);
  }
};

inline FoldCut cut_fold(std::size_t element_bytes, const std::byte* const* sources, int source_count,
                        std::byte* const* results, int result_count, std::size_t count) {
  constexpr std::size_t kBytes = 16;
  FoldCut cut{0, 0, count, 1};
  if (result_count == 0) return cut;
  const auto off = [](const std::byte* p) { return reinterpret_cast<std::uintptr_t>(p) % kBytes; };
  const std::size_t first = off(results[0]);
  for (int i = 0; i < source_count; ++i)
    if (off(sources[i]) != first) return cut;
  for (int i = 0; i < result_count; ++i)
    if (off(results[i]) != first) return cut;
  if (first % element_bytes != 0) return cut;
  cut.width = static_cast<int>(kBytes / element_bytes);
  cut.head = first == 0 ? 0 : (kBytes - first) / element_bytes;
  if (cut.head > count) cut.head = count;
  cut.packs = (count - cut.head) / static_cast<std::size_t>(cut.width);
  return cut;
}

}  // namespace bellows
