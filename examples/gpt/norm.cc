#include "norm.h"

#include <cmath>

#include "vec.h"

namespace gpt {

template <class T>
RowStats NormKernel<T>::forward(const float* x, const T* weight, const T* bias, T* y) const {
  RowStats stats;
  if (kind_ == Norm::kLayer) {
    Vec sum{};
    each_vec(dim_, [&](long i, auto n) { sum += load(x + i, n); });
    stats.mean = lane_sum(sum) / static_cast<float>(dim_);
  }
  const Vec mean = broadcast(stats.mean);
  Vec squares{};
  each_vec(dim_, [&](long i, auto n) {
    const Vec d = keep(load(x + i, n) - mean, n);
    squares = fma(d, d, squares);
  });
  stats.inverse = 1.0f / std::sqrt(lane_sum(squares) / static_cast<float>(dim_) + epsilon_);
  const Vec inverse = broadcast(stats.inverse);
  each_vec(dim_, [&](long i, auto n) {
    const Vec scaled = (load(x + i, n) - mean) * inverse;
    const Vec shift = bias != nullptr ? load(bias + i, n) : Vec{};
    store(y + i, fma(scaled, load(weight + i, n), shift), n);
  });
  return stats;
}

template <class T>
void NormKernel<T>::backward(const float* x, RowStats stats, const T* weight, const T* bias, const float* dy,
                             const float* residual, float* dx, float* dweight, float* dbias, T* y) const {
  const Vec mean = broadcast(stats.mean), inverse = broadcast(stats.inverse);
  Vec sum{}, product{};  // of the gradient of the scaled row, and of it times that row
  each_vec(dim_, [&](long i, auto n) {
    const Vec scaled = keep((load(x + i, n) - mean) * inverse, n);
    const Vec g = load(dy + i, n), w = load(weight + i, n);
    const Vec d = g * w;
    sum += d;
    product = fma(d, scaled, product);
    store(dweight + i, fma(g, scaled, load(dweight + i, n)), n);
    Vec shift{};
    if (bias != nullptr) {
      shift = load(bias + i, n);
      store(dbias + i, load(dbias + i, n) + g, n);
    }
    store(y + i, fma(scaled, w, shift), n);
  });
  const float scale = 1.0f / static_cast<float>(dim_);
  const Vec mean_d = broadcast(kind_ == Norm::kLayer ? lane_sum(sum) * scale : 0.0f);
  const Vec mean_product = broadcast(lane_sum(product) * scale);
  each_vec(dim_, [&](long i, auto n) {
    const Vec scaled = (load(x + i, n) - mean) * inverse;
    const Vec d = load(dy + i, n) * load(weight + i, n) - mean_d - scaled * mean_product;
    store(dx + i, fma(d, inverse, residual != nullptr ? load(residual + i, n) : Vec{}), n);
  });
}

template class NormKernel<float>;
template class NormKernel<bellows::bf16>;

}  // namespace gpt
