#include "bellows/base/hardware.h"

namespace bellows {
namespace {

// Dense peaks in TFLOP/s as the makers' data sheets print them; where a sheet gives only the figure with sparsity, half
// of it. 0: the device has no such units. f32 and f64 are those of the plain (not tensor) units, except that the f64 of
// A100, H100 and later is the tensor units'. Names are what the driver reports, exactly: a near miss is another device.
struct Row {
  std::string_view name;
  double f64, f32, tf32, f16, bf16, f8;
};

constexpr Row kGpus[] = {
    // NVIDIA Blackwell data sheets: GB200 NVL72 (per GPU), HGX B200 and B300 (an eighth of the board).
    {"NVIDIA GB200", 40, 80, 1250, 2500, 2500, 5000},
    {"NVIDIA B200", 37, 75, 1125, 2250, 2250, 4500},
    {"NVIDIA GeForce RTX 5090", 0, 104.8, 104.8, 209.5, 209.5, 419},
    // NVIDIA Hopper data sheets: H100, H200, GH200, H20, H800.
    {"NVIDIA H100 80GB HBM3", 67, 67, 494.7, 989.4, 989.4, 1978.9},
    {"NVIDIA H100 PCIe", 51, 51, 378, 756, 756, 1513},
    {"NVIDIA H100 NVL", 60, 60, 417.5, 835.5, 835.5, 1670.5},
    {"NVIDIA H200", 67, 67, 494.7, 989.4, 989.4, 1978.9},
    {"NVIDIA H200 NVL", 60, 60, 417.5, 835.5, 835.5, 1670.5},
    {"NVIDIA GH200 480GB", 67, 67, 494.7, 989.4, 989.4, 1978.9},
    {"NVIDIA H800", 0, 67, 494.7, 989.4, 989.4, 1978.9},
    {"NVIDIA H20", 0, 44, 74, 148, 148, 296},
    // NVIDIA Ampere data sheets: A100, A800, A30, A40, A10, RTX A6000, GeForce RTX 3090.
    {"NVIDIA A100-SXM4-40GB", 19.5, 19.5, 156, 312, 312, 0},
    {"NVIDIA A100-SXM4-80GB", 19.5, 19.5, 156, 312, 312, 0},
    {"NVIDIA A100-PCIE-40GB", 19.5, 19.5, 156, 312, 312, 0},
    {"NVIDIA A100 80GB PCIe", 19.5, 19.5, 156, 312, 312, 0},
    {"NVIDIA A800-SXM4-80GB", 0, 19.5, 156, 312, 312, 0},
    {"NVIDIA A800 80GB PCIe", 0, 19.5, 156, 312, 312, 0},
    {"NVIDIA A30", 10.3, 10.3, 82, 165, 165, 0},
    {"NVIDIA A40", 0, 37.4, 74.8, 149.7, 149.7, 0},
    {"NVIDIA A10", 0, 31.2, 62.5, 125, 125, 0},
    {"NVIDIA RTX A6000", 0, 38.7, 77.4, 154.8, 154.8, 0},
    {"NVIDIA GeForce RTX 3090", 0, 35.6, 35.6, 71, 71, 0},
    // NVIDIA Ada data sheets: L40S, L40, L4, RTX 6000 Ada, GeForce RTX 4090 (with 32-bit accumulation).
    {"NVIDIA L40S", 0, 91.6, 183, 362.05, 362.05, 733},
    {"NVIDIA L40", 0, 90.5, 90.5, 181.05, 181.05, 362},
    {"NVIDIA L4", 0, 30.3, 60, 121, 121, 242.5},
    {"NVIDIA RTX 6000 Ada Generation", 0, 91.1, 182.1, 364.2, 364.2, 728.5},
    {"NVIDIA GeForce RTX 4090", 0, 82.6, 82.6, 165.2, 165.2, 330.3},
    // NVIDIA Volta and Turing data sheets; they have no bfloat16.
    {"Tesla V100-SXM2-16GB", 7.8, 15.7, 0, 125, 0, 0},
    {"Tesla V100-SXM2-32GB", 7.8, 15.7, 0, 125, 0, 0},
    {"Tesla V100-PCIE-16GB", 7, 14, 0, 112, 0, 0},
    {"Tesla V100-PCIE-32GB", 7, 14, 0, 112, 0, 0},
    {"Tesla T4", 0, 8.1, 0, 65, 0, 0},
};

double of(const Row& row, PeakType type) {
  switch (type) {
    case PeakType::kF64:
      return row.f64;
    case PeakType::kF32:
      return row.f32;
    case PeakType::kTF32:
      return row.tf32;
    case PeakType::kF16:
      return row.f16;
    case PeakType::kBF16:
      return row.bf16;
    case PeakType::kF8:
      return row.f8;
  }
  return 0;
}

}  // namespace

std::optional<double> gpu_dense_peak(std::string_view device_name, PeakType type) {
  for (const Row& row : kGpus)
    if (row.name == device_name && of(row, type) > 0) return of(row, type) * 1e12;
  return std::nullopt;
}

}  // namespace bellows
