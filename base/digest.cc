#include "bellows/base/digest.h"

#include <xxhash.h>

#include <cstdio>

namespace bellows {

Digest::Digest() : state_(XXH64_createState()) { XXH64_reset(static_cast<XXH64_state_t*>(state_), 0); }
Digest::~Digest() { XXH64_freeState(static_cast<XXH64_state_t*>(state_)); }
void Digest::update(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH64_update(static_cast<XXH64_state_t*>(state_), bytes.data(), bytes.size());
}
std::uint64_t Digest::value() const { return XXH64_digest(static_cast<const XXH64_state_t*>(state_)); }
std::string Digest::hex() const { return hex64(value()); }

std::uint64_t xxh64(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH64(bytes.data(), bytes.size(), seed);
}

std::string hex64(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace bellows
