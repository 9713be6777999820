#include "activation.h"

#include "vec.h"

namespace gpt {
namespace {

constexpr float kSlope = 1.5957691216f;  // 2 sqrt(2/pi)
constexpr float kCubic = 0.044715f;

template <class T>
inline Vec with_bias(Vec v, const T* bias, long i, auto n) {
  return bias != nullptr ? v + load(bias + i, n) : v;
}

// What T can hold: backward sees the value that forward used.
inline Vec rounded(Vec v, const float*) { return v; }
inline Vec rounded(Vec v, const bellows::bf16*) {
  bellows::bf16 lanes[kLanes];
  store(lanes, v);
  return load(lanes);
}

}  // namespace

template <class T>
void ActivationKernel<T>::forward(const float* product, const T* bias, T* u, T* a) const {
  const T* type = nullptr;
  if (kind_ == Activation::kGelu) {
    each_vec(hidden_, [&](long i, auto n) {
      const Vec x = rounded(with_bias(load(product + i, n), bias, i, n), type);
      store(u + i, x, n);
      const Vec inner = kSlope * x * fma(kCubic * x, x, broadcast(1.0f));
      store(a + i, x * sigmoid(inner), n);
    });
  } else {
    each_vec(hidden_, [&](long i, auto n) {
      const Vec gate = rounded(with_bias(load(product + i, n), bias, i, n), type);
      const Vec linear = rounded(with_bias(load(product + hidden_ + i, n), bias, hidden_ + i, n), type);
      store(u + i, gate, n);
      store(u + hidden_ + i, linear, n);
      store(a + i, gate * sigmoid(gate) * linear, n);
    });
  }
}

template <class T>
void ActivationKernel<T>::backward(const T* u, const float* da, T* a, T* du, float* dbias) const {
  const Vec one = broadcast(1.0f);
  const auto put = [&](long i, auto n, Vec d) {
    store(du + i, d, n);
    if (dbias != nullptr) store(dbias + i, load(dbias + i, n) + d, n);
  };
  if (kind_ == Activation::kGelu) {
    each_vec(hidden_, [&](long i, auto n) {
      const Vec x = load(u + i, n);
      const Vec square = x * x;
      const Vec s = sigmoid(kSlope * x * fma(broadcast(kCubic), square, one));
      store(a + i, x * s, n);
      // d(inner)/dx = slope (1 + 3 cubic x^2);  d(x s)/dx = s + x s (1 - s) d(inner)/dx
      const Vec slope = kSlope * fma(broadcast(3 * kCubic), square, one);
      put(i, n, load(da + i, n) * fma(x * s * (one - s), slope, s));
    });
  } else {
    each_vec(hidden_, [&](long i, auto n) {
      const Vec gate = load(u + i, n), linear = load(u + hidden_ + i, n), d = load(da + i, n);
      const Vec s = sigmoid(gate);
      const Vec swish = gate * s;
      store(a + i, swish * linear, n);
      put(i, n, d * linear * fma(swish, one - s, s));
      put(hidden_ + i, n, d * swish);
    });
  }
}

template class ActivationKernel<float>;
template class ActivationKernel<bellows::bf16>;

}  // namespace gpt
