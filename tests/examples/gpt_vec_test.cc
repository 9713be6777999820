#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "vec.h"

namespace gpt {
namespace {

float first(Vec v) { return v[0]; }

TEST(Vec, ExponentialIsWithinThreeInTenMillion) {
  for (double x = -87; x <= 88; x += 0.00317) {
    const double exact = std::exp(static_cast<double>(static_cast<float>(x)));
    ASSERT_NEAR(first(exp(broadcast(static_cast<float>(x)))) / exact, 1.0, 3e-7) << x;
  }
}

TEST(Vec, ExponentialBehavesAtTheEnds) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_LT(first(exp(broadcast(-inf))), 1e-37f);
  EXPECT_LT(first(exp(broadcast(-200))), 1e-37f);
  EXPECT_GE(first(exp(broadcast(-200))), 0);
  EXPECT_EQ(first(exp(broadcast(0))), 1);
  EXPECT_GT(first(exp(broadcast(1000))), 1e38f);
  EXPECT_TRUE(std::isnan(first(exp(broadcast(std::nanf(""))))));
}

TEST(Vec, SigmoidIsAccurateAndSaturates) {
  for (double x = -80; x <= 80; x += 0.0173) {
    const double at = static_cast<double>(static_cast<float>(x));
    ASSERT_NEAR(first(sigmoid(broadcast(static_cast<float>(x)))) * (1 + std::exp(-at)), 1.0, 1e-6) << x;
  }
  EXPECT_EQ(first(sigmoid(broadcast(1000))), 1);
  EXPECT_LT(first(sigmoid(broadcast(-1000))), 1e-37f);
}

TEST(Vec, LoadsAndStoresTheFirstLanesOnly) {
  float from[16], to[16];
  for (int i = 0; i < 16; ++i) from[i] = static_cast<float>(i + 1), to[i] = -1;
  const Vec v = load(from, 5);
  EXPECT_EQ(lane_sum(v), 15);
  store(to, v, 3);
  EXPECT_EQ(to[2], 3);
  EXPECT_EQ(to[3], -1);
  EXPECT_EQ(lane_max(keep(broadcast(2.0f) * load(from), 4, -7.0f)), 8);
  EXPECT_EQ(lane_max(-load(from)), -1);
}

TEST(Vec, RoundsToBfloat16LikeTheScalarType) {
  for (int i = 0; i < 4000; ++i) {
    float in[16];
    bellows::bf16 out[16];
    for (int j = 0; j < 16; ++j) in[j] = std::ldexp(std::sin(static_cast<float>(16 * i + j)), (i % 60) - 30);
    store(out, load(in));
    for (int j = 0; j < 16; ++j) ASSERT_EQ(out[j].bits, bellows::bf16(in[j]).bits) << in[j];
    ASSERT_EQ(load(out)[7], static_cast<float>(out[7]));
  }
}

}  // namespace
}  // namespace gpt
