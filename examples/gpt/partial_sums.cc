#include "partial_sums.h"

#include <cstring>

#include "vec.h"

namespace gpt {

PartialSums::PartialSums(const std::vector<Place>& places, long blocks) : blocks_(blocks) {
  for (const Place& p : places)
    if (p.offset >= 0) {
      parts_.push_back({p, width_});
      width_ += (p.count + kLanes - 1) / kLanes * kLanes;
    }
  memory_ = bellows::HostMemory(width_ * blocks * sizeof(float));
}

void PartialSums::clear(long block) { std::memset(row(block), 0, width_ * sizeof(float)); }

float* PartialSums::at(long block, const Place& place) {
  for (const Part& part : parts_)
    if (part.place.offset == place.offset) return row(block) + part.begin;
  return nullptr;
}

void PartialSums::reduce(std::size_t task, UnitGradient gradient) {
  const Part& part = parts_[task];
  float* to = part.place.in(gradient.values);
  each_vec(static_cast<long>(part.place.count), [&](long i, auto n) {
    Vec sum = gradient.accumulate ? load(to + i, n) : Vec{};
    for (long block = 0; block < blocks_; ++block) sum += load(row(block) + part.begin + i, n);
    store(to + i, sum, n);
  });
}

}  // namespace gpt
