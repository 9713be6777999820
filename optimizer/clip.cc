#include "bellows/optimizer/clip.h"

#include <cmath>
#include <cstring>

#include "bellows/base/check.h"

namespace bellows {
namespace {

// Vectors of fixed width, whatever the processor: the compiler splits them where its registers are narrower, and every
// partial sum still sees the same elements in the same order.
typedef float Floats __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(64)));
constexpr std::size_t kWidth = 8;
constexpr std::size_t kVectors = 4;  // as many chains as hide the latency of an addition
constexpr std::size_t kPartials = kWidth * kVectors;

void add_squares(Doubles partials[kVectors], const float* x) {
  for (std::size_t v = 0; v < kVectors; ++v) {
    Floats f;
    std::memcpy(&f, x + v * kWidth, sizeof f);
    const Doubles d = __builtin_convertvector(f, Doubles);
    partials[v] += d * d;
  }
}

double fold(const double* values, std::size_t n) {
  if (n == 1) return values[0];
  std::size_t left = 1;  // the largest power of two below n: the tree of a longer list contains that of a shorter one
  while (left * 2 < n) left *= 2;
  return fold(values, left) + fold(values + left, n - left);
}

std::uint64_t count_non_finite(std::span<const float> chunk) {
  std::uint64_t count = 0;
  for (const float x : chunk) count += !std::isfinite(x);
  return count;
}

}  // namespace

double sum_of_squares(std::span<const float> chunk, std::uint64_t* non_finite) {
  Doubles partials[kVectors] = {};
  std::size_t i = 0;
  for (; i + kPartials <= chunk.size(); i += kPartials) add_squares(partials, chunk.data() + i);
  if (i < chunk.size()) {
    float last[kPartials] = {};  // adding +0 to a sum of squares changes no bit
    std::memcpy(last, chunk.data() + i, (chunk.size() - i) * sizeof(float));
    add_squares(partials, last);
  }
  double flat[kPartials];
  std::memcpy(flat, partials, sizeof flat);
  const double sum = fold(flat, kPartials);
  // Squares of finite floats cannot overflow a double, so a finite sum proves every element finite.
  if (!std::isfinite(sum) && non_finite) *non_finite += count_non_finite(chunk);
  return sum;
}

double fold_sums(std::span<const double> partials) {
  return partials.empty() ? 0.0 : fold(partials.data(), partials.size());
}

float clip_coefficient(double norm, double max_norm) {
  BELLOWS_CHECK(std::isfinite(norm));  // a norm that is not finite never reaches an update
  if (max_norm <= 0 || norm <= max_norm) return 1.0f;
  return static_cast<float>(max_norm / norm);
}

}  // namespace bellows
