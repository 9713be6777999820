#pragma once
#include <cstdint>
#include <vector>

namespace gpt {

/// Softmax cross-entropy of one row of logits that arrives in slices, so that every slice is worked on while it is in
/// cache, and only once: each logit's exponential is taken a single time, against its own slice's largest, and put
/// right by a factor per slice when the whole row is known.
class LossRow {
 public:
  /// Prepares for rows of `slices` slices. `target` < 0: the row does not count.
  explicit LossRow(long slices) : largest_(slices), sum_(slices) {}

  void begin(std::int32_t target) { target_ = target; }
  /// Logits [first, first + count) of the row become exponentials in place.
  void add_slice(long slice, float* logits, long first, long count);
  /// After the last slice: the row's loss, 0 if it does not count.
  double finish();
  /// The gradient of the row's loss, probabilities minus the target, from the exponentials of one slice.
  template <class T>
  void gradient(long slice, const float* exponentials, long first, long count, T* out) const;

 private:
  std::vector<float> largest_, sum_;  // by slice; after finish() largest_ holds the slice's factor
  float target_logit_ = 0;
  std::int32_t target_ = -1;
};

}  // namespace gpt
