#include "bellows/base/philox.h"

#include <gtest/gtest.h>

#include <set>

namespace bellows {
namespace {

using Words = std::array<std::uint32_t, 4>;

Words philox(Words counter, std::uint32_t k0, std::uint32_t k1) {
  philox4x32(counter.data(), k0, k1);
  return counter;
}

TEST(Philox, GivesThePublishedWords) {
  // Known answers of Random123, philox4x32 with 10 rounds.
  EXPECT_EQ(philox({0, 0, 0, 0}, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, kOnes, kOnes),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, SeedStreamAndIndexEachChangeTheNumbers) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 4; ++seed)
    for (std::uint64_t stream = 0; stream < 4; ++stream)
      for (std::uint64_t index : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32, std::uint64_t{1} << 63})
        seen.insert(Philox(seed, stream).bits64(index));
  EXPECT_EQ(seen.size(), 64u);
}

TEST(Philox, UniformAndNormalHaveTheirMoments) {
  const Philox random(5, 6);
  double sum = 0, normal = 0, squares = 0;
  constexpr int kCount = 100000;
  for (int i = 0; i < kCount; ++i) {
    const double u = random.uniform(static_cast<std::uint64_t>(i)), n = random.normal(static_cast<std::uint64_t>(i));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    normal += n;
    squares += n * n;
  }
  EXPECT_NEAR(sum / kCount, 0.5, 0.005);
  EXPECT_NEAR(normal / kCount, 0.0, 0.015);
  EXPECT_NEAR(squares / kCount, 1.0, 0.03);
}

}  // namespace
}  // namespace bellows
