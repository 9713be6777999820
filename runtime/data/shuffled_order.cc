#include <bit>

#include "bellows/base/check.h"
#include "bellows/base/philox.h"
#include "bellows/runtime/data.h"

namespace bellows {

// A Feistel network of four rounds permutes [0, 4^half_bits); values that fall outside [0, samples) are sent through
// again until they are inside ("cycle walking"), which leaves a permutation of [0, samples). The domain is less than four
// times too large, so a handful of passes do.
std::int64_t ShuffledOrder::at(std::int64_t n) const {
  BELLOWS_CHECK_GT(samples_, std::int64_t{0});
  BELLOWS_CHECK_GE(n, std::int64_t{0});
  const std::uint64_t epoch = static_cast<std::uint64_t>(n / samples_);
  const int bits = std::bit_width(static_cast<std::uint64_t>(samples_ - 1));
  const int half = (bits + 1) / 2;
  if (half == 0) return 0;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  const Philox random(seed_, epoch);
  std::uint64_t value = static_cast<std::uint64_t>(n % samples_);
  do {
    std::uint64_t left = value >> half, right = value & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t mixed = left ^ (random.bits64(round << 60 | right) & mask);
      left = right;
      right = mixed;
    }
    value = left << half | right;
  } while (value >= static_cast<std::uint64_t>(samples_));
  return static_cast<std::int64_t>(value);
}

}  // namespace bellows
