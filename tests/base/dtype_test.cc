// The 16-bit formats against conversions written out by the definition of each format.
#include "bellows/base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace bellows {
namespace {

std::uint16_t bits_of(f16 half) {
  std::uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}

f16 half_from_bits(std::uint16_t bits) {
  f16 half;
  std::memcpy(static_cast<void*>(&half), &bits, 2);
  return half;
}

float float_from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// Sign, 5 bits of exponent with bias 15, 10 bits of fraction.
float value_of_half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  float value;
  if (exponent == 31)
    value = fraction ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  else if (exponent == 0)
    value = std::ldexp(float(fraction), -24);
  else
    value = std::ldexp(float(1024 + fraction), exponent - 25);
  return bits & 0x8000 ? -value : value;
}

TEST(F16, EveryValueConvertsToTheFloatOfItsDefinitionAndBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float got = static_cast<float>(half_from_bits(std::uint16_t(bits)));
    const float want = value_of_half(std::uint16_t(bits));
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << std::hex << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(f16(got)))) << std::hex << bits;
      continue;
    }
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(want)) << std::hex << bits;
    ASSERT_EQ(bits_of(f16(got)), bits) << std::hex << bits;
  }
}

// Between every two neighbours: just below the middle goes down, just above goes up, the middle to the even one.
TEST(F16, RoundsToTheNearestAndTiesToEven) {
  for (std::uint32_t low = 0; low < 0x7bff; ++low) {
    const float a = value_of_half(std::uint16_t(low)), b = value_of_half(std::uint16_t(low + 1));
    const float middle = a + (b - a) / 2;  // exact: a float has 13 more bits of fraction
    const std::uint16_t even = std::uint16_t(low & 1 ? low + 1 : low);
    for (const float sign : {1.0f, -1.0f}) {
      const std::uint16_t s = sign < 0 ? 0x8000 : 0;
      ASSERT_EQ(bits_of(f16(sign * middle)), even | s) << low;
      ASSERT_EQ(bits_of(f16(sign * std::nextafter(middle, 0.0f))), low | s) << low;
      ASSERT_EQ(bits_of(f16(sign * std::nextafter(middle, 1e9f))), (low + 1) | s) << low;
    }
  }
}

TEST(F16, OverflowsFromTheMiddleAfterTheLargestValue) {
  EXPECT_EQ(bits_of(f16(65504.0f)), 0x7bff);
  EXPECT_EQ(bits_of(f16(std::nextafter(65520.0f, 0.0f))), 0x7bff);
  EXPECT_EQ(bits_of(f16(65520.0f)), 0x7c00);
  EXPECT_EQ(bits_of(f16(-std::numeric_limits<float>::max())), 0xfc00);
}

TEST(BF16, EveryValueIsTheUpperHalfOfItsFloatAndConvertsBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    bf16 half;
    half.bits = std::uint16_t(bits);
    const float value = static_cast<float>(half);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(value), bits << 16);
    if (std::isnan(value))
      ASSERT_TRUE(std::isnan(static_cast<float>(bf16(value)))) << std::hex << bits;
    else
      ASSERT_EQ(bf16(value).bits, bits);
  }
}

TEST(BF16, RoundsToTheNearestAndTiesToEven) {
  for (std::uint32_t low = 0; low < 0x7f80; ++low) {
    const std::uint32_t middle = (low << 16) | 0x8000;
    ASSERT_EQ(bf16(float_from_bits(middle)).bits, low & 1 ? low + 1 : low);
    ASSERT_EQ(bf16(float_from_bits(middle - 1)).bits, low);
    ASSERT_EQ(bf16(float_from_bits(middle + 1)).bits, low + 1);
    ASSERT_EQ(bf16(float_from_bits(0x80000000u | middle)).bits, 0x8000u | (low & 1 ? low + 1 : low));
  }
}

// A NaN whose fraction lies in the lower half alone must not become an infinity.
TEST(BF16, KeepsNotANumber) {
  for (const std::uint32_t bits : {0x7f800001u, 0x7f80ffffu, 0x7fffffffu, 0xffffffffu, 0xff800001u})
    EXPECT_TRUE(std::isnan(static_cast<float>(bf16(float_from_bits(bits))))) << std::hex << bits;
}

}  // namespace
}  // namespace bellows
