#pragma once
#include <cstdint>
#include <vector>

#include "bellows/base/dtype.h"
#include "bellows/comm/lanes.h"

namespace bellows {

/// What lane `lane` contributes to element `i` in these tests: of mixed size and sign, so that any other order of
/// additions shows in the bits.
inline float lane_value(int lane, std::size_t i) {
  std::uint64_t x = (static_cast<std::uint64_t>(lane) + 1) * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;
  x ^= x >> 31;
  x *= 0x94d049bb133111ebu;
  x ^= x >> 29;
  const float unit = static_cast<float>(static_cast<std::int32_t>(x)) * 0x1p-31f;
  return unit * static_cast<float>(1 << (x >> 60));
}

template <class T>
T add_rounded(T a, T b) {
  return T(static_cast<float>(a) + static_cast<float>(b));
}

/// A plain loop over the lane tree, one element at a time: the sums that are left after `lanes` (ascending), as spans
/// and values. With `complete` one value is left. Written from the definition, apart from the code under test.
template <class T>
struct TreeSum {
  std::vector<LaneSpan> spans;
  std::vector<T> values;

  void push(int lane, T value) {
    spans.push_back({lane, 1});
    values.push_back(value);
    while (spans.size() > 1) {
      const LaneSpan a = spans[spans.size() - 2], b = spans.back();
      if (a.count != b.count || a.first + a.count != b.first || a.first % (2 * a.count) != 0) break;
      join();
    }
  }
  void finish() {
    while (spans.size() > 1) join();
  }

 private:
  void join() {
    const T sum = add_rounded(values[values.size() - 2], values.back());
    spans[spans.size() - 2].count += spans.back().count;
    spans.pop_back();
    values.pop_back();
    values.back() = sum;
  }
};

/// The whole sum of element `i` over `lanes` lanes.
template <class T>
T whole_sum(int lanes, std::size_t i) {
  TreeSum<T> sum;
  for (int lane = 0; lane < lanes; ++lane) sum.push(lane, T(lane_value(lane, i)));
  sum.finish();
  return sum.values[0];
}

}  // namespace bellows
