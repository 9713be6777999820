#include "loss.h"

#include <cmath>

#include "vec.h"

namespace gpt {

void LossRow::add_slice(long slice, float* logits, long first, long count) {
  if (target_ >= first && target_ < first + count) target_logit_ = logits[target_ - first];
  Vec top = broadcast(logits[0]);
  each_vec(count, [&](long i, auto n) { top = larger(keep(load(logits + i, n), n, logits[0]), top); });
  largest_[slice] = lane_max(top);
  const Vec largest = broadcast(largest_[slice]);
  Vec sum{};
  each_vec(count, [&](long i, auto n) {
    const Vec e = exp(load(logits + i, n) - largest);
    sum += keep(e, n);
    store(logits + i, e, n);
  });
  sum_[slice] = lane_sum(sum);
}

double LossRow::finish() {
  float top = largest_[0];
  for (const float l : largest_) top = l > top ? l : top;
  float total = 0;
  for (std::size_t s = 0; s < sum_.size(); ++s) {
    largest_[s] = std::exp(largest_[s] - top);
    total += sum_[s] * largest_[s];
  }
  for (float& factor : largest_) factor /= total;
  if (target_ < 0) return 0;
  return static_cast<double>(top) + std::log(static_cast<double>(total)) - static_cast<double>(target_logit_);
}

template <class T>
void LossRow::gradient(long slice, const float* exponentials, long first, long count, T* out) const {
  if (target_ < 0) {
    each_vec(count, [&](long i, auto n) { store(out + i, Vec{}, n); });
    return;
  }
  const long hit = target_ - first;
  const float at_target = hit >= 0 && hit < count ? exponentials[hit] * largest_[slice] - 1.0f : 0.0f;
  const Vec factor = broadcast(largest_[slice]);
  each_vec(count, [&](long i, auto n) { store(out + i, load(exponentials + i, n) * factor, n); });
  if (hit >= 0 && hit < count) out[hit] = static_cast<T>(at_target);
}

template void LossRow::gradient(long, const float*, long, long, float*) const;
template void LossRow::gradient(long, const float*, long, long, bellows::bf16*) const;

}  // namespace gpt
