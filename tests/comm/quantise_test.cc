#include "quantise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace bellows {
namespace {

std::vector<float> there_and_back(const std::vector<float>& values) {
  std::vector<std::byte> message(quantised_bytes(values.size()));
  std::vector<float> back(values.size(), -1.0f);
  quantise(values, message);
  dequantise(message, back);
  return back;
}

std::vector<float> varied(std::size_t count) {
  std::vector<float> values(count);
  std::uint32_t state = 12345;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = std::ldexp(static_cast<float>(static_cast<int>(state >> 8) - (1 << 23)), static_cast<int>(state % 40) - 40);
  }
  return values;
}

TEST(Quantise, IsOffByAtMostHalfAStepOfTheBlock) {
  for (const std::size_t count : {1u, 7u, 255u, 256u, 257u, 5000u}) {
    const std::vector<float> values = varied(count), back = there_and_back(values);
    for (std::size_t begin = 0; begin < count; begin += kQuantisedBlock) {
      const std::size_t end = std::min(count, begin + kQuantisedBlock);
      float largest = 0;
      for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
      for (std::size_t i = begin; i < end; ++i)
        ASSERT_LE(std::abs(double{values[i]} - double{back[i]}), largest / 254.0 * (1 + 1e-4)) << i << " of " << count;
    }
  }
}

TEST(Quantise, KeepsWholeStepsExactlyAndRoundsTiesToEven) {
  const std::vector<float> values = {127, -127, 1, -3, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 0};
  EXPECT_EQ(there_and_back(values), (std::vector<float>{127, -127, 1, -3, 0, 2, 2, 0, -2, 0}));
}

TEST(Quantise, TakesAQuarterOfTheBytesAndAScalePerBlock) {
  EXPECT_EQ(quantised_bytes(0), 0u);
  EXPECT_EQ(quantised_bytes(1), 5u);
  EXPECT_EQ(quantised_bytes(256), 260u);
  EXPECT_EQ(quantised_bytes(257), 265u);
}

TEST(Quantise, ANonFiniteElementMakesItsBlockNaNAndNoOther) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> values(600, 2.0f);
    values[300] = bad;
    const std::vector<float> back = there_and_back(values);
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(std::isnan(back[i]), i >= 256 && i < 512) << i << " beside " << bad;
  }
}

TEST(Quantise, ExtremesStayFiniteAndTheTiniestBecomeZero) {
  constexpr float kMax = std::numeric_limits<float>::max();
  const std::vector<float> back = there_and_back({kMax, -kMax, kMax / 2});
  EXPECT_TRUE(std::isfinite(back[0]) && std::isfinite(back[1]));
  EXPECT_NEAR(back[0] / kMax, 1.0f, 1e-6f);
  EXPECT_EQ(there_and_back({0x1p-130f, -0x1p-120f}), (std::vector<float>{0, 0}));
  EXPECT_EQ(there_and_back({0x1p-119f})[0], 0x1p-119f);
}

TEST(Quantise, MessagesOfAnotherSizeAreRefused) {
  std::vector<float> values(10);
  std::vector<std::byte> message(13);
  EXPECT_THROW(quantise(values, message), std::invalid_argument);
  EXPECT_THROW(dequantise(message, values), std::invalid_argument);
}

}  // namespace
}  // namespace bellows
