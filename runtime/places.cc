#include "places.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "bellows/base/check.h"

namespace bellows {

Places::Places(const ParameterSet& parameters, const ChunkTable& table, DType precision) : dtype_(precision) {
  const auto asked = [&](const Parameter& p) { return p.options.dtype.value_or(precision); };
  bool first = true;
  for (const Parameter& p : parameters.parameters()) {
    if (p.count == 0) continue;
    if (first) dtype_ = asked(p);
    first = false;
    mixed_ = mixed_ || asked(p) != dtype_;
  }

  std::size_t at = 0;
  const auto align = [&](std::size_t bytes) {
    if (mixed_) at = (at + bytes - 1) / bytes * bytes;
  };
  parameters_.resize(parameters.parameters().size());
  for (const Unit& unit : parameters.units()) {
    align(4);
    const std::size_t unit_begin = at;
    bool mixed = false;
    std::optional<DType> before;
    for (const ParamId id : unit.parameters) {
      const Parameter& p = parameters.parameter(id);
      const DType dtype = asked(p);
      if (p.count > 0) align(size_of(dtype));
      parameters_[id.index] = {dtype, at - unit_begin};
      if (p.count == 0) continue;
      mixed = mixed || (before && *before != dtype);
      before = dtype;
      const Interval elements{unit.begin + p.offset, unit.begin + p.offset + p.count};
      if (!runs_.empty() && runs_.back().dtype == dtype && runs_.back().elements.end == elements.begin &&
          runs_.back().at + runs_.back().elements.size() * size_of(dtype) == at)
        runs_.back().elements.end = elements.end;
      else
        runs_.push_back({elements, dtype, at});
      at += p.count * size_of(dtype);
    }
    align(4);
    units_.push_back({unit_begin, at});
    mixed_units_.push_back(mixed);
  }
  total_bytes_ = at;

  for (std::size_t c = 0; c < table.size(); ++c) {
    const std::size_t begin = byte_of(table[c].begin);
    if (c > 0) chunks_.back().end = begin;
    chunks_.push_back({begin, total_bytes_});
  }
}

std::size_t Places::byte_of(std::size_t element) const {
  const auto run =
      std::partition_point(runs_.begin(), runs_.end(), [&](const Run& r) { return r.elements.end <= element; });
  return run->at + (element - run->elements.begin) * size_of(run->dtype);
}

std::size_t Places::largest_unit_bytes() const {
  std::size_t largest = 0;
  for (const Interval& unit : units_) largest = std::max(largest, unit.size());
  return largest;
}

std::vector<Places::Run> Places::runs_in(Interval elements) const {
  std::vector<Run> result;
  auto run =
      std::partition_point(runs_.begin(), runs_.end(), [&](const Run& r) { return r.elements.end <= elements.begin; });
  for (; run != runs_.end() && run->elements.begin < elements.end; ++run) {
    const Interval cut{std::max(run->elements.begin, elements.begin), std::min(run->elements.end, elements.end)};
    if (cut.begin < cut.end)
      result.push_back({cut, run->dtype, run->at + (cut.begin - run->elements.begin) * size_of(run->dtype)});
  }
  return result;
}

void Places::write(std::size_t chunk, Interval elements, std::span<const float> exact, std::byte* to) const {
  BELLOWS_CHECK_EQ(elements.size(), exact.size());
  for (const Run& run : runs_in(elements)) {
    const float* const from = exact.data() + (run.elements.begin - elements.begin);
    std::byte* const target = to + (run.at - chunks_[chunk].begin);
    if (run.dtype == DType::kF32) {
      std::memcpy(target, from, run.elements.size() * sizeof(float));
      continue;
    }
    bf16* const rounded = reinterpret_cast<bf16*>(target);
    for (std::size_t i = 0; i < run.elements.size(); ++i) rounded[i] = bf16(from[i]);
  }
}

}  // namespace bellows
