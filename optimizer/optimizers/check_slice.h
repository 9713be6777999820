#pragma once
#include "bellows/base/check.h"
#include "bellows/optimizer/optimizer.h"

namespace bellows {

/// Every span of a slice is as long as its parameters; the low-precision copy may be absent.
inline void check_slice(const Slice& slice, std::size_t states) {
  BELLOWS_CHECK_EQ(slice.grads.size(), slice.params.size());
  for (std::size_t i = 0; i < states; ++i) BELLOWS_CHECK_EQ(slice.state[i].size(), slice.params.size());
  if (!slice.low.empty()) BELLOWS_CHECK_EQ(slice.low.size(), slice.params.size());
}

}  // namespace bellows
