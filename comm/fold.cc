#include "fold.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace bellows {
namespace {

// True if the positions, whatever lanes they stand for, are added as a balanced tree of so many leaves.
bool is_balanced(const FoldProgram& program) {
  const int leaves = program.sources;
  if (program.results.size() != 1 || (leaves & (leaves - 1)) != 0) return false;
  std::vector<std::pair<int, int>> stack;  // value, leaves below it
  stack.reserve(static_cast<std::size_t>(leaves));
  std::size_t step = 0;
  for (int leaf = 0; leaf < leaves; ++leaf) {
    stack.push_back({leaf, 1});
    while (stack.size() > 1 && stack[stack.size() - 2].second == stack.back().second) {
      const int left = stack[stack.size() - 2].first, right = stack.back().first;
      if (program.steps[step].left != left || program.steps[step].right != right) return false;
      stack.pop_back();
      stack.back() = {leaves + static_cast<int>(step++), 2 * stack.back().second};
    }
  }
  return true;
}

}  // namespace

FoldProgram make_fold(const std::vector<LaneSpan>& spans, bool complete) {
  FoldProgram program;
  program.sources = static_cast<int>(spans.size());
  struct Entry {
    int value;
    LaneSpan span;
  };
  std::vector<Entry> stack;
  stack.reserve(spans.size());
  program.steps.reserve(spans.size());
  const auto join_last_two = [&] {
    const Entry right = stack.back();
    stack.pop_back();
    Entry& left = stack.back();
    program.steps.push_back({left.value, right.value});
    left.value = program.sources + static_cast<int>(program.steps.size()) - 1;
    left.span.count = right.span.end() - left.span.first;
  };
  for (int i = 0; i < program.sources; ++i) {
    if (spans[i].count < 1 || (i > 0 && spans[i].first < spans[i - 1].end()))
      throw std::invalid_argument("partial sums overlap or are out of order at lane " + std::to_string(spans[i].first));
    stack.push_back({i, spans[i]});
    while (stack.size() > 1 && lane_siblings(stack[stack.size() - 2].span, stack.back().span)) join_last_two();
  }
  if (complete)
    while (stack.size() > 1) join_last_two();
  program.results.reserve(stack.size());
  program.spans.reserve(stack.size());
  for (const Entry& entry : stack) {
    program.results.push_back(entry.value);
    program.spans.push_back(entry.span);
  }
  program.balanced = is_balanced(program);
  return program;
}

}  // namespace bellows
