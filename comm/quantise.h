#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace bellows {

// Floats as int8 with one scale per block, for messages in which a quarter of the bytes is worth a rounding.
//
//   message := block*             every block of 256 elements, the last one of what is left
//   block   := scale:f32 value:i8*          element = scale * value, value in [-127, 127]
//
// The scale is max|x| / 127 of the block and values are rounded to nearest, ties to even, so an element is off by at
// most max|x| / 254 (and a few units in the last place of float). A block whose max|x| is below 2^-119 becomes zeros. A
// block with a NaN or an infinity becomes NaNs throughout: whoever looks for non-finite gradients still finds them.
// The same input gives the same bytes on every machine and for every thread count.

constexpr std::size_t kQuantisedBlock = 256;  ///< elements

/// Bytes of the message for `count` elements.
constexpr std::size_t quantised_bytes(std::size_t count) {
  return count + (count + kQuantisedBlock - 1) / kQuantisedBlock * sizeof(float);
}

/// `message` has quantised_bytes(values.size()) bytes; else std::invalid_argument. Needs no alignment.
void quantise(std::span<const float> values, std::span<std::byte> message);
void dequantise(std::span<const std::byte> message, std::span<float> values);

}  // namespace bellows
