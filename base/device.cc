#include "bellows/base/device.h"

#include "bellows/base/check.h"

namespace bellows {

void Stream::copy(std::span<std::byte> to, std::span<const std::byte> from) {
  BELLOWS_CHECK_EQ(to.size(), from.size());
  if (!to.empty()) do_copy(to.data(), from.data(), to.size());
}

void Stream::fill(std::span<std::byte> bytes, std::byte value) {
  if (!bytes.empty()) do_fill(bytes.data(), value, bytes.size());
}

}  // namespace bellows
