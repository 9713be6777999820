#include "rotary.h"

#include <cmath>

#include "vec.h"

namespace gpt {

Rotary::Rotary(long seq, long head_dim, float base) : half_(head_dim / 2), cosine_(seq * half_), sine_(seq * half_) {
  for (long t = 0; t < seq; ++t)
    for (long j = 0; j < half_; ++j) {
      const double angle = static_cast<double>(t) * std::pow(static_cast<double>(base), -2.0 * j / head_dim);
      cosine_[t * half_ + j] = static_cast<float>(std::cos(angle));
      sine_[t * half_ + j] = static_cast<float>(std::sin(angle));
    }
}

void Rotary::turn(long position, float* row, long heads, float direction) const {
  const float* cosine = cosine_.data() + position * half_;
  const float* sine = sine_.data() + position * half_;
  for (long h = 0; h < heads; ++h) {
    float* first = row + h * 2 * half_;
    float* second = first + half_;
    each_vec(half_, [&](long j, auto n) {
      const Vec c = load(cosine + j, n), s = direction * load(sine + j, n);
      const Vec x = load(first + j, n), y = load(second + j, n);
      store(first + j, x * c - y * s, n);
      store(second + j, y * c + x * s, n);
    });
  }
}

}  // namespace gpt
