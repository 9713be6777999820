#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "bellows/base/dtype.h"
#include "bellows/comm/lanes.h"

namespace bellows {

/// The additions that turn an ordered list of partial sums into finished subtrees of the lane tree: a pure function of
/// the spans. Values are numbered: [0, sources) are the partial sums brought, sources + i is the outcome of step i.
struct FoldProgram {
  struct Step {
    int left = 0;
    int right = 0;
  };
  int sources = 0;
  std::vector<Step> steps;
  std::vector<int> results;     ///< values that are left, ascending by lane
  std::vector<LaneSpan> spans;  ///< what each result is the sum of
  bool balanced = false;        ///< one result, a balanced tree over the sources: takes the fast loops
};

/// `spans` in lane order without overlap, else std::invalid_argument. With `complete`, no lane follows: what is left on
/// the stack is added from the right.
FoldProgram make_fold(const std::vector<LaneSpan>& spans, bool complete);

/// How a fold writes what it has added.
struct FoldStores {
  bool streaming = false;  ///< past the caches: for results larger than those, or read next by another core
  bool ahead = false;      ///< with `streaming`: the sources lie in main memory and are fetched ahead
  std::span<std::byte* const> copies{};  ///< further places of the result, of a program that has one
};

/// Carries out the program on `count` elements behind each source pointer, in one pass over memory.
/// A result may be the same memory as a source that stands at its place or earlier in the program's order, the only
/// result and its copies the same as any source; every other overlap is forbidden. 16-bit types are added in float and
/// rounded at every node.
void run_fold(const FoldProgram& program, DType dtype, const std::byte* const* sources, std::byte* const* results,
              std::size_t count, const FoldStores& stores = {});

}  // namespace bellows
