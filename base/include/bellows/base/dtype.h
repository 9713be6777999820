#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#if defined(__CUDACC__)
#define BELLOWS_HD __host__ __device__
#else
#define BELLOWS_HD
#endif

namespace bellows {

enum class DType : std::uint8_t { kF32 = 0, kBF16 = 1, kF16 = 2, kU8 = 3, kF64 = 4 };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 8;
    case DType::kF32: return 4;
    case DType::kBF16:
    case DType::kF16: return 2;
    case DType::kU8: return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kF64: return "f64";
    case DType::kF32: return "f32";
    case DType::kBF16: return "bf16";
    case DType::kF16: return "f16";
    case DType::kU8: return "u8";
  }
  return "?";
}

/// bfloat16: the upper half of a float32, rounded to nearest even. NaN stays NaN (quiet).
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  BELLOWS_HD explicit bf16(float value) {
    std::uint32_t u;
    std::memcpy(&u, &value, 4);
    // Branch-free on purpose: compilers vectorise the select.
    const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const std::uint32_t quiet = (u >> 16) | 0x40u;
    bits = static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
  }
  BELLOWS_HD explicit operator float() const {
    const std::uint32_t u = static_cast<std::uint32_t>(bits) << 16;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
  }
};
static_assert(sizeof(bf16) == 2);

/// IEEE half precision, rounded to nearest even.
struct f16 {
#if defined(__clang_major__) && __clang_major__ < 15
  using Storage = __fp16;  // the same format, under the name that clang 14 knows on x86
#else
  using Storage = _Float16;
#endif
  Storage value = 0;
  f16() = default;
  explicit f16(float v) : value(static_cast<Storage>(v)) {}
  explicit operator float() const { return static_cast<float>(value); }
};
static_assert(sizeof(f16) == 2);

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() { return DType::kF32; }
template <>
constexpr DType dtype_of<double>() { return DType::kF64; }
template <>
constexpr DType dtype_of<bf16>() { return DType::kBF16; }
template <>
constexpr DType dtype_of<f16>() { return DType::kF16; }
template <>
constexpr DType dtype_of<std::uint8_t>() { return DType::kU8; }
template <>
constexpr DType dtype_of<std::byte>() { return DType::kU8; }

}  // namespace bellows
