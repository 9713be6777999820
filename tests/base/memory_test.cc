#include "bellows/base/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "bellows/base/error.h"

namespace bellows {
namespace {

template <class Memory>
class AnyMemory : public testing::Test {};
using Memories = testing::Types<HostMemory, SharedMemory>;
TYPED_TEST_SUITE(AnyMemory, Memories);

TYPED_TEST(AnyMemory, IsZeroedAlignedAndAsLongAsAskedFor) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{4097}, std::size_t{3} << 20}) {
    const TypeParam memory(bytes);
    ASSERT_EQ(memory.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % 4096, 0u);
    const auto all = memory.bytes();
    EXPECT_TRUE(std::all_of(all.begin(), all.end(), [](std::byte b) { return b == std::byte{0}; }));
    std::fill(all.begin(), all.end(), std::byte{1});
  }
}

TYPED_TEST(AnyMemory, MovesWithoutCopyingAndNothingIsNothing) {
  const TypeParam none(0);
  EXPECT_EQ(none.size(), 0u);
  TypeParam first(100);
  std::byte* data = first.data();
  TypeParam second = std::move(first);
  EXPECT_EQ(second.data(), data);
  TypeParam third;
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.template as<float>().size(), 25u);
}

TYPED_TEST(AnyMemory, MoreThanTheHostHasIsAnErrorThatNamesTheSize) {
  try {
    const TypeParam memory(std::size_t{1} << 52);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("4096.0 TiB"), std::string::npos) << error.what();
  }
}

TEST(SharedMemory, ASecondMappingSeesTheSameBytes) {
  const SharedMemory first(std::size_t{3} << 20);
  const SharedMemory second = SharedMemory::map(dup(first.fd()), first.size());
  EXPECT_NE(first.data(), second.data());
  first.as<int>()[12345] = 7;
  EXPECT_EQ(second.as<int>()[12345], 7);
  second.as<int>().back() = 9;
  EXPECT_EQ(first.as<int>().back(), 9);
}

TEST(HumanBytes, PicksTheUnit) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(3.0 * (1 << 20)), "3.0 MiB");
}

}  // namespace
}  // namespace bellows
