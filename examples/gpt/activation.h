#pragma once
#include "config.h"

namespace gpt {

/// GELU in its tanh form, u sigmoid(2 sqrt(2/pi) (u + 0.044715 u^3)), or SwiGLU, gate sigmoid(gate) linear, of one row.
/// A SwiGLU row holds `hidden` gate values and then `hidden` linear ones.
template <class T>
class ActivationKernel {
 public:
  ActivationKernel(Activation kind, long hidden) : kind_(kind), hidden_(hidden) {}

  /// u = product + bias rounded to T (bias may be null; T's u is kept for backward), then a = activation(u).
  void forward(const float* product, const T* bias, T* u, T* a) const;
  /// du from da; writes a once more, so that it need not be kept; adds du to dbias (null without a bias).
  void backward(const T* u, const float* da, T* a, T* du, float* dbias) const;

 private:
  Activation kind_;
  long hidden_;
};

}  // namespace gpt
