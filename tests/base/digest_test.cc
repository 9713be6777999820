#include "bellows/base/digest.h"

#include <gtest/gtest.h>

#include <string>

namespace bellows {
namespace {

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

TEST(Digest, GivesThePublishedValues) {
  EXPECT_EQ(hex64(xxh64(bytes(""))), "ef46db3751d8e999");
  EXPECT_EQ(hex64(xxh64(bytes("abc"))), "44bc2cf5ad770999");
}

TEST(Digest, DoesNotDependOnHowTheBytesArrive) {
  const std::string text(1000, 'x');
  for (std::size_t piece = 1; piece < 200; piece += 33) {
    Digest digest;
    for (std::size_t at = 0; at < text.size(); at += piece) digest.update(std::string_view(text).substr(at, piece));
    EXPECT_EQ(digest.value(), xxh64(bytes(text)));
    EXPECT_EQ(digest.hex(), hex64(digest.value()));
  }
}

TEST(Digest, EveryByteAndTheSeedCount) {
  std::string text(100, 'x');
  const std::uint64_t before = xxh64(bytes(text));
  EXPECT_NE(xxh64(bytes(text), 1), before);
  for (char& c : text) {
    c = 'y';
    EXPECT_NE(xxh64(bytes(text)), before);
    c = 'x';
  }
}

}  // namespace
}  // namespace bellows
