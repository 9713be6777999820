#pragma once
#include <cstddef>
#include <vector>

#include "fold.h"

namespace bellows {

/// From this size on sums do not stay in the caches anyway.
inline constexpr std::size_t kStreamingBytes = std::size_t{4} << 20;
/// From this size on sums that peers read next are written past the caches.
inline constexpr std::size_t kStreamingWindowBytes = std::size_t{16} << 10;

/// As much of a result as is folded in about 10 microseconds.
inline constexpr std::size_t kStretchBytes = std::size_t{128} << 10;

/// A long fold, stretch by stretch: between two of them the group looks at errors and at more urgent calls.
class FoldStretch {
 public:
  FoldStretch(const FoldProgram& program, DType dtype) : program_(program), dtype_(dtype), element_(size_of(dtype)) {}

  std::vector<const std::byte*> sources;  ///< where element 0 of each stands
  std::vector<std::byte*> results;        ///< the same for results
  std::vector<std::byte*> copies;         ///< and for further places of the only one
  FoldStores stores;

  /// Elements [begin, begin + count) of everything.
  void run(std::size_t begin, std::size_t count) {
    const std::size_t by = begin * element_;
    move(sources, from_, by);
    move(results, to_, by);
    move(copies, copies_, by);
    FoldStores stores_here = stores;
    stores_here.copies = copies_;
    run_fold(program_, dtype_, from_.data(), to_.data(), count, stores_here);
  }

 private:
  template <class P>
  static void move(const std::vector<P>& all, std::vector<P>& moved, std::size_t by) {
    moved.resize(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) moved[i] = all[i] + by;
  }

  const FoldProgram& program_;
  const DType dtype_;
  const std::size_t element_;
  std::vector<const std::byte*> from_;
  std::vector<std::byte*> to_, copies_;
};

}  // namespace bellows
