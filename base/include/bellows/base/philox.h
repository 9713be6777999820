#pragma once
#include <array>
#include <cmath>
#include <cstdint>

#include "bellows/base/dtype.h"

namespace bellows {

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a pure function from a
/// counter and a key to four 32-bit words. Nothing here has state, so the numbers cannot depend on a rank or an order.
BELLOWS_HD inline void philox4x32(std::uint32_t counter[4], std::uint32_t k0, std::uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * counter[0];
    const std::uint64_t p1 = 0xCD9E8D57ull * counter[2];
    const std::uint32_t c1 = counter[1], c3 = counter[3];
    counter[0] = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    counter[1] = static_cast<std::uint32_t>(p1);
    counter[2] = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    counter[3] = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

/// Random numbers keyed by (seed, stream): element `index` is the same whoever asks for it.
class Philox {
 public:
  Philox(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}

  std::array<std::uint32_t, 4> block(std::uint64_t index) const {
    std::array<std::uint32_t, 4> c = {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                                      static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)};
    philox4x32(c.data(), static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32));
    return c;
  }
  std::uint64_t bits64(std::uint64_t index) const {
    const auto b = block(index);
    return static_cast<std::uint64_t>(b[1]) << 32 | b[0];
  }
  /// In [0, 1), 53 bits.
  double uniform(std::uint64_t index) const { return static_cast<double>(bits64(index) >> 11) * 0x1.0p-53; }
  /// Standard normal by Box-Muller, in double precision, rounded once.
  float normal(std::uint64_t index) const {
    const auto b = block(index);
    const double u = (static_cast<double>(static_cast<std::uint64_t>(b[1]) << 32 | b[0]) + 1.0) * 0x1.0p-64;
    const double v = static_cast<double>(static_cast<std::uint64_t>(b[3]) << 32 | b[2]) * 0x1.0p-64;
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v));
  }

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
};

}  // namespace bellows
