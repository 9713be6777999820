// The optimizers' element functions as CUDA kernels, part of libbellows_cuda.so.
#include "launch.cuh"
#include "optimizers/adamw_element.h"
#include "optimizers/cuda_kernels.h"
#include "optimizers/sgd_element.h"

namespace bellows {
namespace {

struct AdamWSweep {
  AdamWStep step;
  float *param, *exp_avg, *exp_avg_sq;
  const float* grad;
  bf16* low;
  __device__ void operator()(std::size_t i) const {
    adamw_element(step, param[i], exp_avg[i], exp_avg_sq[i], grad[i]);
    if (low) low[i] = bf16(param[i]);
  }
};

struct SgdSweep {
  SgdStep step;
  float *param, *momentum;
  const float* grad;
  bf16* low;
  __device__ void operator()(std::size_t i) const {
    if (momentum) {
      sgd_momentum_element(step, param[i], momentum[i], grad[i]);
    } else {
      sgd_element(step, param[i], grad[i]);
    }
    if (low) low[i] = bf16(param[i]);
  }
};

}  // namespace
}  // namespace bellows

using namespace bellows;

extern "C" __attribute__((visibility("default"))) void bellows_cuda_adamw(void* stream, const AdamWStep* step,
                                                                          const Slice* slice) {
  for_each(stream, slice->params.size(),
           AdamWSweep{*step, slice->params.data(), slice->state[0].data(), slice->state[1].data(), slice->grads.data(),
                      slice->low.data()});
}

extern "C" __attribute__((visibility("default"))) void bellows_cuda_sgd(void* stream, const SgdStep* step,
                                                                        const Slice* slice) {
  for_each(stream, slice->params.size(),
           SgdSweep{*step, slice->params.data(), slice->state[0].data(), slice->grads.data(), slice->low.data()});
}
