#include "bellows/runtime/parameter_set.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "bellows/base/digest.h"
#include "bellows/base/error.h"
#include "bellows/base/philox.h"

namespace bellows {

namespace {

// The shortest text that reads back as the same number.
std::string exact(double value) {
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

}  // namespace

std::string describe(const ParameterGroup& group) {
  return "learning_rate_scale " + exact(group.learning_rate_scale) + ", weight_decay " +
         (group.weight_decay ? exact(*group.weight_decay) : "of the optimizer") + ", frozen_from_step " +
         (group.frozen_from_step ? std::to_string(*group.frozen_from_step) : "never");
}

UnitId ParameterSet::add_unit(std::string name, int backward_uses) {
  BELLOWS_CHECK_GE(backward_uses, 1);
  units_.push_back(Unit{std::move(name), total(), 0, backward_uses, {}});
  return UnitId{static_cast<int>(units_.size()) - 1};
}

void ParameterSet::add_group(ParameterGroup group) {
  const auto refuse = [&](const std::string& what) { throw UserError("parameter group '" + group.name + "' " + what); };
  if (group.name.empty()) throw UserError("a parameter group needs a name");
  if (this->group(group.name)) refuse("is declared twice");
  if (!std::isfinite(group.learning_rate_scale) || group.learning_rate_scale < 0)
    refuse("has learning_rate_scale " + exact(group.learning_rate_scale) + "; it must be a number of at least 0");
  if (group.weight_decay && (!std::isfinite(*group.weight_decay) || *group.weight_decay < 0))
    refuse("has weight_decay " + exact(*group.weight_decay) + "; it must be a number of at least 0");
  if (group.frozen_from_step && *group.frozen_from_step < 0)
    refuse("has frozen_from_step " + std::to_string(*group.frozen_from_step) + "; it must be at least 0");
  groups_.push_back(std::move(group));
}

const ParameterGroup* ParameterSet::group(const std::string& name) const {
  for (const ParameterGroup& group : groups_)
    if (group.name == name) return &group;
  return nullptr;
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
  if (!options.group.empty() && !group(options.group)) {
    std::string known;
    for (const ParameterGroup& other : groups_) known += (known.empty() ? "" : ", ") + other.name;
    throw UserError("parameter '" + name + "' is in the group '" + options.group + "', which is not declared" +
                    (known.empty() ? "" : "; known: " + known));
  }
  if (options.dtype && *options.dtype != DType::kF32 && *options.dtype != DType::kBF16)
    throw UserError("parameter '" + name + "' asks for " + std::string(name_of(*options.dtype)) +
                    "; parameters are f32 or bf16 in compute");
  const ParamId id{static_cast<int>(parameters_.size())};
  Unit& home = units_.back();
  parameters_.push_back(Parameter{std::move(name), std::move(shape), std::move(options), unit, home.count, count});
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

std::string ParameterSet::settings_fingerprint() const {
  std::vector<const ParameterGroup*> by_name;
  for (const ParameterGroup& group : groups_) by_name.push_back(&group);
  std::sort(by_name.begin(), by_name.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  std::string text;
  for (const ParameterGroup* group : by_name) {
    text += group->name + "(" + describe(*group) + "){";
    for (const Parameter& p : parameters_)
      if (p.options.group == group->name) text += p.name + ';';
    text += '}';
  }
  for (const Parameter& p : parameters_)
    if (p.options.dtype) text += p.name + ':' + std::string(name_of(*p.options.dtype)) + ';';
  return text;
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
