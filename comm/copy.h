#pragma once
#include <cstddef>

namespace bellows {

/// From this size on the outcome of a gather does not stay in the caches anyway.
inline constexpr std::size_t kStreamingCopyBytes = std::size_t{16} << 20;

/// memcpy; with `streaming` the destination is written past the caches, which saves reading it first.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, bool streaming);

}  // namespace bellows
