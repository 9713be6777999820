#include "quantise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace bellows {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;

// As integers, magnitudes keep their order and NaNs come last: the loop needs no comparison of floats, and vectorises.
std::uint32_t largest_magnitude(const float* values, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(values[i]) & kMagnitude);
  return largest;
}

void encode_block(const float* values, std::size_t count, float* scale, std::int8_t* out) {
  const std::uint32_t bits = largest_magnitude(values, count);
  const float largest = std::bit_cast<float>(bits);
  const bool finite = bits < kInfinity;
  if (!finite || largest < 0x1p-119f) {
    *scale = finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    std::memset(out, 0, count);
    return;
  }
  const float inverse = 127.0f / largest;
  *scale = largest / 127.0f;
  if (std::isinf(*scale * 127.0f)) *scale = std::nextafter(*scale, 0.0f);
  // Adding 1.5 * 2^23 leaves no bits for a fraction: the processor rounds to nearest even, and the integer is what
  // stands in the low bits.
  constexpr float kShift = 0x1.8p23f;
  for (std::size_t i = 0; i < count; ++i)
    out[i] = static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(values[i] * inverse + kShift) & 0xff);
}

void check(std::size_t values, std::size_t message) {
  if (message != quantised_bytes(values))
    throw std::invalid_argument(std::to_string(values) + " quantised elements take " +
                                std::to_string(quantised_bytes(values)) + " bytes, not " + std::to_string(message));
}

}  // namespace

void quantise(std::span<const float> values, std::span<std::byte> message) {
  check(values.size(), message.size());
  std::byte* to = message.data();
  for (std::size_t at = 0; at < values.size(); at += kQuantisedBlock) {
    const std::size_t count = std::min(kQuantisedBlock, values.size() - at);
    float scale;
    encode_block(values.data() + at, count, &scale, reinterpret_cast<std::int8_t*>(to + sizeof scale));
    std::memcpy(to, &scale, sizeof scale);
    to += sizeof scale + count;
  }
}

void dequantise(std::span<const std::byte> message, std::span<float> values) {
  check(values.size(), message.size());
  const std::byte* from = message.data();
  for (std::size_t at = 0; at < values.size(); at += kQuantisedBlock) {
    const std::size_t count = std::min(kQuantisedBlock, values.size() - at);
    float scale;
    std::memcpy(&scale, from, sizeof scale);
    const auto* const in = reinterpret_cast<const std::int8_t*>(from + sizeof scale);
    float* const out = values.data() + at;
    for (std::size_t i = 0; i < count; ++i) out[i] = scale * static_cast<float>(in[i]);
    from += sizeof scale + count;
  }
}

}  // namespace bellows
