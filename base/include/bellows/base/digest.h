#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace bellows {

/// A running xxh64. Feed it bytes in canonical order; the order of the calls' sizes does not matter.
class Digest {
 public:
  Digest();
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text.data(), text.size()))); }
  std::uint64_t value() const;
  std::string hex() const;  ///< 16 lower-case hex digits

 private:
  void* state_;
};

std::uint64_t xxh64(std::span<const std::byte> bytes, std::uint64_t seed = 0);
std::string hex64(std::uint64_t value);

}  // namespace bellows
