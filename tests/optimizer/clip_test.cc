#include "bellows/optimizer/clip.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "bellows/base/philox.h"

namespace bellows {
namespace {

std::vector<float> random(std::size_t n, float scale = 1.0f) {
  std::vector<float> values(n);
  const Philox philox(7, 1);
  for (std::size_t i = 0; i < n; ++i) values[i] = scale * philox.normal(i);
  return values;
}

TEST(SumOfSquares, MatchesAPlainSumAtEveryLength) {
  for (std::size_t n = 0; n < 200; ++n) {
    const auto values = random(n);
    long double expected = 0;
    for (const float x : values) expected += static_cast<long double>(x) * x;
    std::uint64_t bad = 0;
    EXPECT_NEAR(sum_of_squares(values, &bad), static_cast<double>(expected), 1e-12) << n;
    EXPECT_EQ(bad, 0u);
  }
}

TEST(SumOfSquares, FollowsTheDocumentedOrder) {
  const auto values = random(16384 + 13, 3.0f);
  double partials[32] = {};
  for (std::size_t i = 0; i < values.size(); ++i)
    partials[i % 32] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  for (int width = 1; width < 32; width *= 2)
    for (int i = 0; i < 32; i += 2 * width) partials[i] += partials[i + width];
  std::uint64_t bad = 0;
  EXPECT_EQ(sum_of_squares(values, &bad), partials[0]);
}

TEST(SumOfSquares, DoesNotDependOnAlignmentOrTrailingZeros) {
  const auto values = random(1000);
  std::uint64_t bad = 0;
  const double expected = sum_of_squares(values, &bad);
  for (std::size_t shift = 0; shift < 17; ++shift) {
    std::vector<float> moved(shift + values.size() + 40, 0.0f);
    std::copy(values.begin(), values.end(), moved.begin() + static_cast<std::ptrdiff_t>(shift));
    EXPECT_EQ(sum_of_squares(std::span(moved).subspan(shift, values.size()), &bad), expected);
    EXPECT_EQ(sum_of_squares(std::span(moved).subspan(shift, values.size() + 40), &bad), expected);
  }
}

TEST(SumOfSquares, CountsEveryElementThatIsNotFinite) {
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity()}) {
    for (const std::size_t where : {std::size_t{0}, std::size_t{31}, std::size_t{32}, std::size_t{98}}) {
      auto values = random(99);
      values[where] = poison;
      values[50] = poison;
      std::uint64_t bad = 5;
      EXPECT_FALSE(std::isfinite(sum_of_squares(values, &bad)));
      EXPECT_EQ(bad, 7u);
    }
  }
}

TEST(SumOfSquares, LargeFiniteElementsAreFinite) {
  const std::vector<float> values(10000, std::numeric_limits<float>::max());
  std::uint64_t bad = 0;
  EXPECT_TRUE(std::isfinite(sum_of_squares(values, &bad)));
  EXPECT_EQ(bad, 0u);
}

TEST(FoldSums, NormOfShardsIsTheNormOfTheWhole) {
  const std::vector<float> first = {3, 4}, second = {0, 0};
  std::uint64_t bad = 0;
  const std::vector<double> partials = {sum_of_squares(first, &bad), sum_of_squares(second, &bad)};
  EXPECT_EQ(std::sqrt(fold_sums(partials)), 5.0);
}

TEST(FoldSums, IsABalancedTreeNotARunningSum) {
  EXPECT_EQ(fold_sums({}), 0.0);
  EXPECT_EQ(fold_sums(std::vector<double>{2.5}), 2.5);
  const double tiny = 0x1.0p-53;  // half a unit in the last place of 1
  EXPECT_EQ(fold_sums(std::vector<double>{1.0, tiny, tiny, tiny}), (1.0 + tiny) + (tiny + tiny));
  EXPECT_NE(fold_sums(std::vector<double>{1.0, tiny, tiny, tiny}), ((1.0 + tiny) + tiny) + tiny);
  EXPECT_EQ(fold_sums(std::vector<double>{1.0, tiny, tiny}), (1.0 + tiny) + tiny);
}

TEST(ClipCoefficient, BringsTheNormDownAndNeverUp) {
  EXPECT_EQ(clip_coefficient(5.0, 1.0), 0.2f);
  EXPECT_EQ(clip_coefficient(1.0, 1.0), 1.0f);
  EXPECT_EQ(clip_coefficient(0.5, 1.0), 1.0f);
  EXPECT_EQ(clip_coefficient(0.0, 1.0), 1.0f);
  EXPECT_EQ(clip_coefficient(1e30, 0.0), 1.0f);
  EXPECT_EQ(clip_coefficient(1e30, -1.0), 1.0f);
}

TEST(ClipCoefficientDeathTest, NeverSeesANormThatIsNotFinite) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(clip_coefficient(std::nan(""), 1.0), "isfinite");
}

}  // namespace
}  // namespace bellows
