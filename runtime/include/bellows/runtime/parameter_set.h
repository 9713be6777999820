#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bellows/base/dtype.h"
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

/// Settings that several parameters share, known by name: a checkpoint keeps them, and a job that loads it must agree
/// (see EngineOptions::accept_changed_groups). The order of declaration means nothing.
struct ParameterGroup {
  std::string name;
  double learning_rate_scale = 1;      ///< times the schedule's learning rate
  std::optional<double> weight_decay;  ///< instead of the optimizer's; parameters with `decay = false` have none anyway
  /// Frozen in every step that begins with this many committed ones or more: values and optimizer state stay as they
  /// are, and the gradient norm is without it. A function of the step alone, so the same on any world and after a load.
  std::optional<std::int64_t> frozen_from_step;

  bool operator==(const ParameterGroup&) const = default;
};

struct ParameterOptions {
  Init init;
  bool decay = true;           ///< weight decay applies (usual: not for biases and norms)
  bool frozen = false;         ///< never updated, outside the gradient norm
  std::string group;           ///< name of a ParameterGroup; empty: the optimizer's and the schedule's own settings
  std::optional<DType> dtype;  ///< in compute: kF32 or kBF16, whatever the run's precision (norms in float32, say)
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
  /// Before the parameters that are in it. Throws UserError for a name used twice or a setting out of range.
  void add_group(ParameterGroup group);
  /// Appends a parameter to the newest unit. Throws UserError for a name used twice, a negative dimension, an unknown
  /// group or a dtype that nothing computes in.
  ParamId add(UnitId unit, std::string name, std::vector<std::int64_t> shape, ParameterOptions options = {});

  const std::vector<Unit>& units() const { return units_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }
  /// Null if there is none of that name.
  const ParameterGroup* group(const std::string& name) const;
  const Unit& unit(UnitId id) const { return units_[id.index]; }
  const Parameter& parameter(ParamId id) const { return parameters_[id.index]; }
  std::size_t total() const { return units_.empty() ? 0 : units_.back().begin + units_.back().count; }
  std::size_t largest_unit() const;
  /// Names, shapes, units and flags as one string: two models with equal fingerprints can share checkpoints.
  std::string fingerprint() const;
  /// Groups by name, who is in them, and dtypes that parameters ask for: what changes numbers but not what a checkpoint
  /// holds. Empty where there is neither.
  std::string settings_fingerprint() const;

  /// Writes the starting values of elements [range) of the model's index space.
  void initialise(std::uint64_t seed, Interval range, std::span<float> out) const;

 private:
  std::vector<Unit> units_;
  std::vector<Parameter> parameters_;
  std::vector<ParameterGroup> groups_;
};

/// The settings of a group as text for people and comparisons: "learning_rate_scale 0.5, weight_decay 0.1, ...".
std::string describe(const ParameterGroup& group);

}  // namespace bellows
