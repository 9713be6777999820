#include "bellows/base/hardware.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cmath>

#include "bellows/base/error.h"
#include "bellows/base/memory.h"

namespace bellows {
namespace {

TEST(CpuInfo, FollowsTheAffinityMask) {
  const CpuInfo before = cpu_info();
  ASSERT_FALSE(before.allowed.empty());
  EXPECT_GE(before.numa_nodes, 1);
  cpu_set_t old, one;
  sched_getaffinity(0, sizeof old, &old);
  CPU_ZERO(&one);
  CPU_SET(before.allowed.back(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(cpu_info().allowed, std::vector<int>{before.allowed.back()});
  sched_setaffinity(0, sizeof old, &old);
}

TEST(MatrixPeak, IsOfTheMagnitudeOfAProcessor) {
  const MatrixPeak peak = measure_matrix_peak(0.03);
  EXPECT_GT(peak.f32, 1e9);
  EXPECT_LT(peak.f32, 1e12);
  EXPECT_GE(peak.bf16, 0.5 * peak.f32);
  EXPECT_LT(peak.bf16, 1e14);
  EXPECT_FALSE(peak.f32_how.empty());
  EXPECT_FALSE(peak.bf16_how.empty());
}

TEST(MatrixPeak, WhatIsGivenIsNotMeasured) {
  const MatrixPeak peak = matrix_peak("1.5e11", "3e11");
  EXPECT_EQ(peak.f32, 1.5e11);
  EXPECT_EQ(peak.bf16, 3e11);
  EXPECT_EQ(peak.f32_how, "given by BELLOWS_PEAK_F32");
  for (const char* wrong : {"", "fast", "0", "-1", "nan", "inf", "1e11x"})
    EXPECT_THROW(matrix_peak(wrong, "3e11"), UserError) << wrong;
}

TEST(MatrixPeak, RanksThatShareCoresShareTheirPeak) {
  struct Case {
    int cores, ranks, threads;
    double share;
  };
  for (const Case& c : {Case{2, 1, 1, 1.0}, Case{2, 2, 1, 1.0}, Case{2, 4, 1, 0.5}, Case{2, 1, 2, 2.0},
                        Case{2, 1, 8, 2.0}, Case{2, 4, 2, 0.5}, Case{8, 2, 2, 2.0}, Case{8, 3, 4, 8.0 / 3}})
    EXPECT_DOUBLE_EQ(cpu_peak_share(100, c.cores, c.ranks, c.threads), 100 * c.share)
        << c.ranks << " ranks of " << c.threads << " threads on " << c.cores << " cores";
}

TEST(GpuPeak, IsTheDensePeakOfTheDtypeByExactName) {
  EXPECT_EQ(gpu_dense_peak("NVIDIA H200", PeakType::kBF16), 989.4e12);
  EXPECT_EQ(gpu_dense_peak("NVIDIA H200", PeakType::kF32), 67e12);
  EXPECT_EQ(gpu_dense_peak("NVIDIA H200", PeakType::kF8), 1978.9e12);
  EXPECT_EQ(gpu_dense_peak("NVIDIA H100 PCIe", PeakType::kBF16), 756e12);
  EXPECT_EQ(gpu_dense_peak("NVIDIA H100 PCIe", PeakType::kF32), 51e12);
  EXPECT_EQ(gpu_dense_peak("NVIDIA H100 PCIe", PeakType::kF8), 1513e12);
  EXPECT_EQ(gpu_dense_peak("NVIDIA A100-SXM4-80GB", PeakType::kTF32), 156e12);
}

TEST(GpuPeak, IsUnknownRatherThanGuessed) {
  for (const PeakType type : {PeakType::kBF16, PeakType::kF32, PeakType::kF8}) {
    EXPECT_EQ(gpu_dense_peak("Foo 9000", type), std::nullopt);
    EXPECT_EQ(gpu_dense_peak("NVIDIA H100", type), std::nullopt);  // SXM, PCIe or NVL?
    EXPECT_EQ(gpu_dense_peak("", type), std::nullopt);
  }
  EXPECT_EQ(gpu_dense_peak("NVIDIA A100-SXM4-80GB", PeakType::kF8), std::nullopt);
  EXPECT_EQ(gpu_dense_peak("Tesla V100-SXM2-32GB", PeakType::kBF16), std::nullopt);
}

TEST(Stream, TriadAndCopyAreRightAtEveryLength) {
  const HostMemory memory[3] = {HostMemory(4096), HostMemory(4096), HostMemory(4096)};
  for (std::size_t n = 0; n < 70; ++n) {
    const auto out = memory[0].as<float>().first(n), b = memory[1].as<float>().first(n),
               c = memory[2].as<float>().first(n);
    for (std::size_t i = 0; i < n; ++i) b[i] = static_cast<float>(i), c[i] = static_cast<float>(100 * i);
    stream_triad(out, b, c, 0.5f);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(out[i], static_cast<float>(51 * i));
    stream_copy(out, c);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(out[i], c[i]);
  }
}

TEST(MemoryBandwidth, IsOfTheMagnitudeOfAMemory) {
  const MemoryBandwidth bandwidth = measure_memory_bandwidth(std::size_t{8} << 20);
  EXPECT_GT(bandwidth.copy, 1e8);
  EXPECT_LT(bandwidth.copy, 1e14);
  EXPECT_GT(bandwidth.triad, 1e8);
  EXPECT_EQ(bandwidth.threads, static_cast<int>(cpu_info().allowed.size()));
}

}  // namespace
}  // namespace bellows
