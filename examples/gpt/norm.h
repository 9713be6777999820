#pragma once
#include "config.h"

namespace gpt {

/// One row's mean and 1/deviation, kept from forward for backward. RMSNorm has mean 0.
struct RowStats {
  float mean = 0;
  float inverse = 0;
};

/// LayerNorm or RMSNorm of rows of `dim` float32 values: y = (x - mean) / deviation * weight + bias, in the compute
/// type T. `bias` may be null. All sums are float32, over 16 lanes and then a fixed tree.
template <class T>
class NormKernel {
 public:
  NormKernel(Norm kind, long dim, float epsilon) : kind_(kind), dim_(dim), epsilon_(epsilon) {}

  RowStats forward(const float* x, const T* weight, const T* bias, T* y) const;
  /// dx = residual (may be null) + the norm's gradient for dy; adds this row's share to dweight and dbias (null without
  /// a bias) and writes y once more, so that it need not be kept.
  void backward(const float* x, RowStats stats, const T* weight, const T* bias, const float* dy, const float* residual,
                float* dx, float* dweight, float* dbias, T* y) const;

 private:
  Norm kind_;
  long dim_;
  float epsilon_;
};

}  // namespace gpt
