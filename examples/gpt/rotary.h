#pragma once
#include <vector>

namespace gpt {

/// Rotary positions: element j and j + head_dim/2 of a head form a pair that turns by position * base^(-2j/head_dim).
class Rotary {
 public:
  Rotary(long seq, long head_dim, float base);

  /// Turns `heads` heads of one row, in place.
  void forward(long position, float* row, long heads) const { turn(position, row, heads, 1.0f); }
  /// Turns back: the gradient of a rotation is its inverse.
  void backward(long position, float* row, long heads) const { turn(position, row, heads, -1.0f); }

 private:
  void turn(long position, float* row, long heads, float direction) const;

  long half_;
  std::vector<float> cosine_, sine_;  // (seq, head_dim / 2)
};

}  // namespace gpt
