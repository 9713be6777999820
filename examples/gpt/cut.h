#pragma once
#include <algorithm>

namespace gpt {

/// [0, total) cut in blocks of one size, the last one shorter.
struct Cut {
  long total = 0;
  long block = 1;
  long count() const { return (total + block - 1) / block; }
  long begin(long i) const { return i * block; }
  long size(long i) const { return std::min(block, total - i * block); }
  bool is_tail(long i) const { return size(i) != block; }      ///< shorter than the others
  long tail() const { return total - (count() - 1) * block; }  ///< size of the last
};

}  // namespace gpt
