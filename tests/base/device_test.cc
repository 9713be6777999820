#include "bellows/base/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "bellows/base/device_ops.h"
#include "bellows/base/lane_sum.h"
#include "bellows/base/philox.h"

namespace bellows {
namespace {

// The CPU always; CUDA devices where the host has some. What one of them promises, all keep.
std::vector<Device*> all_devices() {
  std::vector<Device*> devices = {&cpu_device()};
  if (cuda_devices()) devices.insert(devices.end(), cuda_devices().value().begin(), cuda_devices().value().end());
  return devices;
}

class AnyDevice : public testing::TestWithParam<Device*> {
 protected:
  Device& device = *GetParam();
  std::unique_ptr<Stream> stream = device.make_stream();

  template <class T>
  Buffer upload(const std::vector<T>& values) {
    Buffer buffer = device.allocate(values.size() * sizeof(T));
    stream->copy(buffer.as<std::byte>(), std::as_bytes(std::span(values)));
    stream->synchronize();
    return buffer;
  }
  template <class T>
  std::vector<T> download(const Buffer& buffer) {
    std::vector<T> values(buffer.size() / sizeof(T));
    stream->copy(std::as_writable_bytes(std::span(values)), buffer.as<std::byte>());
    stream->synchronize();
    return values;
  }
};
INSTANTIATE_TEST_SUITE_P(Host, AnyDevice, testing::ValuesIn(all_devices()), [](const auto& test) {
  return std::string(test.param->kind() == Device::Kind::kCpu ? "Cpu" : "Cuda") + std::to_string(test.param->index());
});

std::vector<float> random(std::size_t n, std::uint64_t stream) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = Philox(3, stream).normal(i);
  return values;
}

TEST_P(AnyDevice, HasANameAndMemory) {
  EXPECT_FALSE(device.name().empty());
  EXPECT_GT(device.memory().total, 0u);
  EXPECT_LE(device.memory().free, device.memory().total);
}

TEST_P(AnyDevice, AllocatesZeroedMemory) {
  const Buffer buffer = device.allocate(1001);
  EXPECT_EQ(buffer.size(), 1001u);
  EXPECT_EQ(buffer.device(), &device);
  EXPECT_EQ(download<std::byte>(buffer), std::vector<std::byte>(1001));
  EXPECT_EQ(device.allocate(0).size(), 0u);
}

TEST_P(AnyDevice, CopiesUpAcrossAndDown) {
  const auto values = random(5000, 1);
  const Buffer first = upload(values), second = device.allocate(first.size());
  stream->copy(second.as<std::byte>(), first.as<std::byte>());
  EXPECT_EQ(download<float>(second), values);
}

TEST_P(AnyDevice, StagingMemoryIsWithinTheHostsReach) {
  const Buffer staging = device.allocate_staging(64), buffer = device.allocate(64);
  ASSERT_EQ(staging.place(), Buffer::Place::kHost);
  std::memset(staging.data(), 7, 64);
  stream->copy(buffer.as<std::byte>(), staging.as<std::byte>());
  EXPECT_EQ(download<std::byte>(buffer), std::vector<std::byte>(64, std::byte{7}));
}

TEST_P(AnyDevice, FillsPartOfABuffer) {
  const Buffer buffer = device.allocate(10);
  stream->fill(buffer.as<std::byte>().subspan(3, 4), std::byte{0xab});
  const auto bytes = download<std::byte>(buffer);
  for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(bytes[i], i >= 3 && i < 7 ? std::byte{0xab} : std::byte{0});
}

TEST_P(AnyDevice, AStreamWaitsForAnEventOfAnother) {
  const auto other = device.make_stream();
  const auto event = device.make_event();
  EXPECT_TRUE(event->done());
  const Buffer a = device.allocate(std::size_t{4} << 20), b = device.allocate(a.size());
  stream->fill(a.as<std::byte>(), std::byte{5});
  stream->record(*event);
  other->wait(*event);
  other->copy(b.as<std::byte>(), a.as<std::byte>());
  other->synchronize();
  EXPECT_TRUE(event->done());
  EXPECT_EQ(download<std::byte>(b), std::vector<std::byte>(b.size(), std::byte{5}));
}

TEST_P(AnyDevice, ABufferThatWasMovedFromIsEmptyAndTheOtherOwnsTheMemory) {
  Buffer first = upload(random(16, 2));
  Buffer second = std::move(first);
  EXPECT_EQ(first.size(), 0u);  // NOLINT: the state after a move is part of the promise
  EXPECT_EQ(download<float>(second), random(16, 2));
  second = Buffer();
  EXPECT_EQ(second.data(), nullptr);
}

TEST_P(AnyDevice, CastsLikeTheHostsBf16) {
  auto values = random(4096, 3);
  values[0] = std::nanf("");
  values[1] = -INFINITY;
  values[2] = 1e-40f;
  values[3] = 3.4e38f;
  const Buffer in = upload(values), out = device.allocate(values.size() * sizeof(bf16));
  cast_to_bf16(*stream, out.as<bf16>(), in.as<float>());
  const auto cast = download<bf16>(out);
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(cast[i].bits, bf16(values[i]).bits) << i;
}

TEST_P(AnyDevice, SumsLanesInTreeOrder) {
  for (const std::size_t lanes : {1u, 2u, 3u, 5u, 8u, 13u, 64u, 256u}) {
    std::vector<Buffer> buffers;
    std::vector<const float*> pointers;
    std::vector<std::vector<float>> values;
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      values.push_back(random(333, 100 + lane));
      buffers.push_back(upload(values.back()));
      pointers.push_back(buffers.back().as<float>().data());
    }
    const Buffer out = device.allocate(333 * sizeof(float));
    lane_sum(*stream, out.as<float>(), pointers);
    const auto sum = download<float>(out);
    for (std::size_t i = 0; i < 333; ++i)
      ASSERT_EQ(sum[i], lane_tree_sum<float>(static_cast<int>(lanes), [&](int l) { return values[l][i]; })) << lanes;
  }
}

// Written apart from what it checks: the balanced tree by recursion, and the stack for what is left.
float balanced(const std::vector<float>& v, std::size_t begin, std::size_t count) {
  if (count == 1) return v[begin];
  return balanced(v, begin, count / 2) + balanced(v, begin + count / 2, count / 2);
}

TEST(LaneTreeSum, IsABalancedTreeForPowersOfTwoAndFoldsTheRestFromTheRight) {
  const auto v = random(64, 9);
  const auto sum = [&](int n) {
    return lane_tree_sum<float>(n, [&](int l) { return v[static_cast<std::size_t>(l)]; });
  };
  for (const int n : {1, 2, 4, 8, 16, 32, 64}) EXPECT_EQ(sum(n), balanced(v, 0, static_cast<std::size_t>(n)));
  EXPECT_EQ(sum(3), (v[0] + v[1]) + v[2]);
  EXPECT_EQ(sum(7), balanced(v, 0, 4) + (balanced(v, 4, 2) + v[6]));
  EXPECT_EQ(sum(13), balanced(v, 0, 8) + (balanced(v, 8, 4) + v[12]));
}

TEST(CudaDevices, AreThereOrOneLineSaysWhyNot) {
  const auto& devices = cuda_devices();
  if (devices) {
    EXPECT_FALSE(devices.value().empty());
    return;
  }
  std::printf("%s\n", devices.error().c_str());
  EXPECT_EQ(devices.error().find("no GPU"), 0u);
  EXPECT_EQ(devices.error().find('\n'), std::string::npos);
}

TEST(StreamDeathTest, CopiesOfUnequalLengthAreOurBug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::vector<std::byte> a(3), b(4);
  EXPECT_DEATH(cpu_device().make_stream()->copy(a, b), "3 vs 4");
}

}  // namespace
}  // namespace bellows
