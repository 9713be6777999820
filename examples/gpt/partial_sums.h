#pragma once
#include <vector>

#include "bellows/base/memory.h"
#include "model.h"
#include "place.h"

namespace gpt {

/// Gradients of vectors (biases and norms) are sums over all rows: every block of rows writes its own partial sum, and
/// the partial sums are added in the order of the blocks.
class PartialSums {
 public:
  PartialSums(const std::vector<Place>& places, long blocks);

  void clear(long block);
  /// The partial sum of one parameter; null if the model has no such parameter.
  float* at(long block, const Place& place);
  /// One task per parameter.
  std::size_t tasks() const { return parts_.size(); }
  void reduce(std::size_t task, UnitGradient gradient);
  std::size_t bytes() const { return memory_.size(); }

 private:
  struct Part {
    Place place;
    std::size_t begin;
  };
  float* row(long block) { return memory_.as<float>().data() + block * width_; }
  std::vector<Part> parts_;
  long blocks_;
  std::size_t width_ = 0;
  bellows::HostMemory memory_;
};

}  // namespace gpt
