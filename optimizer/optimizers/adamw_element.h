#pragma once
#include <cmath>
#include <cstdint>

#include "bellows/base/check.h"
#include "bellows/base/dtype.h"
#include "bellows/optimizer/optimizer.h"

// AdamW for one element (Loshchilov and Hutter, 2019), the same source for CPU and CUDA. Only IEEE + - * / and sqrt,
// and no contraction (-ffp-contract=off here, --fmad=false for nvcc), so vector body, scalar tail and GPU round alike.

namespace bellows {

/// What one update needs per element, worked out once per call in double precision and rounded once.
struct AdamWStep {
  float grad_scale;
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float keep;          ///< 1 - learning_rate * weight_decay
  float step_size;     ///< learning_rate / (1 - beta1^step)
  float inverse_root;  ///< 1 / sqrt(1 - beta2^step)
  float epsilon;
};

/// base^exponent by repeated squaring: multiplications only, so no libm can change the bits.
inline double integer_power(double base, std::int64_t exponent) {
  double power = 1.0;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) power *= base;
    base *= base;
  }
  return power;
}

inline AdamWStep adamw_step(const AdamWConfig& config, const Hyper& hyper) {
  BELLOWS_CHECK_GE(hyper.step, 1);  // the bias correction of step 0 divides by zero
  const double beta1 = config.beta1, beta2 = config.beta2, learning_rate = hyper.learning_rate;
  AdamWStep s;
  s.grad_scale = hyper.grad_scale;
  s.beta1 = config.beta1;
  s.one_minus_beta1 = static_cast<float>(1.0 - beta1);
  s.beta2 = config.beta2;
  s.one_minus_beta2 = static_cast<float>(1.0 - beta2);
  s.keep = static_cast<float>(1.0 - learning_rate * static_cast<double>(hyper.weight_decay));
  s.step_size = static_cast<float>(learning_rate / (1.0 - integer_power(beta1, hyper.step)));
  s.inverse_root = static_cast<float>(1.0 / std::sqrt(1.0 - integer_power(beta2, hyper.step)));
  s.epsilon = config.epsilon;
  return s;
}

BELLOWS_HD inline void adamw_element(const AdamWStep& s, float& param, float& exp_avg, float& exp_avg_sq, float grad) {
  const float g = grad * s.grad_scale;
  const float m = s.beta1 * exp_avg + s.one_minus_beta1 * g;
  const float v = s.beta2 * exp_avg_sq + s.one_minus_beta2 * (g * g);
  const float denominator = sqrtf(v) * s.inverse_root + s.epsilon;
  exp_avg = m;
  exp_avg_sq = v;
  param = param * s.keep - s.step_size * (m / denominator);
}

}  // namespace bellows
