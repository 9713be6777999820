#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bellows/comm/communicator.h"

namespace bellows {

/// Starting values, a pure function of (seed, parameter, element): the same on whichever rank they are computed.
struct Init {
  enum class Kind { kZeros, kOnes, kNormal, kUniform };
  Kind kind = Kind::kZeros;
  float scale = 0;   ///< standard deviation, or half the width

  static Init zeros() { return {Kind::kZeros, 0}; }
  static Init ones() { return {Kind::kOnes, 0}; }
  static Init normal(float stddev) { return {Kind::kNormal, stddev}; }
  static Init uniform(float half_width) { return {Kind::kUniform, half_width}; }
};

struct ParameterOptions {
  Init init;
  bool decay = true;    ///< weight decay applies (usual: not for biases and norms)
  bool frozen = false;  ///< never updated, outside the gradient norm
};

struct UnitId {
  int index = -1;
  bool operator==(const UnitId&) const = default;
};
struct ParamId {
  int index = -1;       ///< in ParameterSet::parameters()
  bool operator==(const ParamId&) const = default;
};

struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;   ///< row-major; a zero in it is allowed (an empty parameter)
  ParameterOptions options;
  UnitId unit;
  std::size_t offset = 0;            ///< first element in its unit
  std::size_t count = 0;
};

/// What is gathered together: a flat canonical index space without padding, parameters in order of declaration.
struct Unit {
  std::string name;
  std::size_t begin = 0;             ///< first element in the model's index space (units one after another)
  std::size_t count = 0;
  int backward_uses = 1;
  std::vector<ParamId> parameters;
};

/// The model as the runtime sees it. Declared once, the same on every rank, before training starts.
class ParameterSet {
 public:
  /// `backward_uses`: how many backward scopes a micro-batch opens on the unit (2 for an embedding that is also the
  /// output head); its gradient is complete after the last.
  UnitId add_unit(std::string name, int backward_uses = 1);
  /// Appends a parameter to the newest unit. Throws UserError for a name used twice or a negative dimension.
  ParamId add(UnitId unit, std::string name, std::vector<std::int64_t> shape, ParameterOptions options = {});

  const std::vector<Unit>& units() const { return units_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const Unit& unit(UnitId id) const { return units_[id.index]; }
  const Parameter& parameter(ParamId id) const { return parameters_[id.index]; }
  std::size_t total() const { return units_.empty() ? 0 : units_.back().begin + units_.back().count; }
  std::size_t largest_unit() const;
  /// Names, shapes, units and flags as one string: two models with equal fingerprints can share checkpoints.
  std::string fingerprint() const;

  /// Writes the starting values of elements [range) of the model's index space.
  void initialise(std::uint64_t seed, Interval range, std::span<float> out) const;

 private:
  std::vector<Unit> units_;
  std::vector<Parameter> parameters_;
};

}  // namespace bellows
