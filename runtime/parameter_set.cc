#include "bellows/runtime/parameter_set.h"

#include <algorithm>
#include <sstream>

#include "bellows/base/digest.h"
#include "bellows/base/error.h"
#include "bellows/base/philox.h"

namespace bellows {

UnitId ParameterSet::add_unit(std::string name, int backward_uses) {
  BELLOWS_CHECK_GE(backward_uses, 1);
  units_.push_back(Unit{std::move(name), total(), 0, backward_uses, {}});
  return UnitId{static_cast<int>(units_.size()) - 1};
}

ParamId ParameterSet::add(UnitId unit, std::string name, std::vector<std::int64_t> shape, ParameterOptions options) {
  if (unit.index != static_cast<int>(units_.size()) - 1)
    throw UserError("parameter '" + name + "' must be added to the newest unit; declare units one after another");
  std::size_t count = 1;
  for (const std::int64_t dim : shape) {
    if (dim < 0) throw UserError("parameter '" + name + "' has the negative dimension " + std::to_string(dim));
    count *= static_cast<std::size_t>(dim);
  }
  for (const Parameter& other : parameters_)
    if (other.name == name) throw UserError("two parameters are named '" + name + "'");
  const ParamId id{static_cast<int>(parameters_.size())};
  Unit& home = units_.back();
  parameters_.push_back(Parameter{std::move(name), std::move(shape), options, unit, home.count, count});
  home.parameters.push_back(id);
  home.count += count;
  return id;
}

std::size_t ParameterSet::largest_unit() const {
  std::size_t largest = 0;
  for (const Unit& unit : units_) largest = std::max(largest, unit.count);
  return largest;
}

std::string ParameterSet::fingerprint() const {
  std::ostringstream out;
  for (const Unit& unit : units_) {
    out << unit.name << '{';
    for (const ParamId id : unit.parameters) {
      const Parameter& p = parameter(id);
      out << p.name << '[';
      for (std::size_t i = 0; i < p.shape.size(); ++i) out << (i ? "," : "") << p.shape[i];
      out << ']' << (p.options.decay ? "" : "-") << (p.options.frozen ? "*" : "") << ';';
    }
    out << '}';
  }
  return out.str();
}

void ParameterSet::initialise(std::uint64_t seed, Interval range, std::span<float> out) const {
  BELLOWS_CHECK_EQ(range.size(), out.size());
  for (const Parameter& p : parameters_) {
    const std::size_t begin = unit(p.unit).begin + p.offset;
    const std::size_t from = std::max(begin, range.begin), to = std::min(begin + p.count, range.end);
    if (from >= to) continue;
    float* target = out.data() + (from - range.begin);
    const std::size_t n = to - from;
    switch (p.options.init.kind) {
      case Init::Kind::kZeros: std::fill_n(target, n, 0.0f); break;
      case Init::Kind::kOnes: std::fill_n(target, n, 1.0f); break;
      case Init::Kind::kNormal: {
        const Philox random(seed, xxh64(std::as_bytes(std::span(p.name))));
        for (std::size_t i = 0; i < n; ++i) target[i] = p.options.init.scale * random.normal(from - begin + i);
        break;
      }
      case Init::Kind::kUniform: {
        const Philox random(seed, xxh64(std::as_bytes(std::span(p.name))));
        for (std::size_t i = 0; i < n; ++i)
          target[i] = static_cast<float>(p.options.init.scale * (2.0 * random.uniform(from - begin + i) - 1.0));
        break;
      }
    }
  }
}

}  // namespace bellows
