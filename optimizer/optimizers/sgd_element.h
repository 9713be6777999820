#pragma once
#include "bellows/base/dtype.h"
#include "bellows/optimizer/optimizer.h"

// SGD for one element, the same source for CPU and CUDA; the rules of adamw_element.h hold here too.

namespace bellows {

struct SgdStep {
  float grad_scale;
  float learning_rate;
  float weight_decay;
  float momentum;
};

inline SgdStep sgd_step(const SgdConfig& config, const Hyper& hyper) {
  return {hyper.grad_scale, hyper.learning_rate, hyper.weight_decay, config.momentum};
}

BELLOWS_HD inline void sgd_element(const SgdStep& s, float& param, float grad) {
  param = param - s.learning_rate * (grad * s.grad_scale + s.weight_decay * param);
}

BELLOWS_HD inline void sgd_momentum_element(const SgdStep& s, float& param, float& momentum, float grad) {
  momentum = s.momentum * momentum + (grad * s.grad_scale + s.weight_decay * param);
  param = param - s.learning_rate * momentum;
}

}  // namespace bellows
