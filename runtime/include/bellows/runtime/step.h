#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bellows/base/dtype.h"
#include "bellows/runtime/parameter_set.h"
#include "bellows/runtime/time_accounts.h"

namespace bellows {

class Engine;
class MicroBatch;

/// Where a parameter lies among its unit's in compute, and as what.
struct ParameterPlace {
  DType dtype = DType::kF32;
  std::size_t offset = 0;   ///< in bytes
};

/// A stretch of the trainer's code in which one unit is present: parameters are gathered on entry and may be released on
/// exit; at the end of its last backward use the reduction of its gradient starts.
/// Pointers are valid inside the scope only.
class UnitUse {
 public:
  ~UnitUse();
  UnitUse(UnitUse&& other) noexcept;
  UnitUse& operator=(UnitUse&&) = delete;

  /// The unit's flat parameters in the compute dtype (float or bf16): element 0 of the unit. Throws UserError for a unit
  /// of parameters in different dtypes, which have no common array.
  const void* params() const {
    if (mixed_) refuse_params();
    return params_;
  }
  /// One parameter; T is its dtype in compute. Throws UserError, naming it and both types, if T is another.
  template <class T>
  std::span<const T> param(ParamId id) const {
    const Parameter& p = parameters_->parameter(id);
    if (p.unit.index != unit_index_ || places_[id.index].dtype != dtype_of<T>()) refuse_param(id, dtype_of<T>());
    if (p.count == 0) return {};
    return {reinterpret_cast<const T*>(static_cast<const std::byte*>(params_) + places_[id.index].offset), p.count};
  }
  /// Of a parameter in compute: the run's precision, or what it asked for.
  DType dtype(ParamId id) const { return places_[id.index].dtype; }
  /// Backward only: the unit's flat float32 gradient of this lane (sum over its tokens, not a mean).
  /// If `accumulate()` is false the memory is undefined and must be overwritten whole; else it is added to.
  float* grads() const { return grads_; }
  bool accumulate() const { return accumulate_; }
  std::span<float> grad(ParamId id) const {
    const Parameter& p = parameters_->parameter(id);
    return {grads_ + p.offset, p.count};
  }
  /// Zeroes the gradient if it is undefined: afterwards `accumulate()` is true. For trainers that only add.
  void zero_grads_if_new();

 private:
  friend class Engine;
  UnitUse() = default;
  [[noreturn]] void refuse_params() const;
  [[noreturn]] void refuse_param(ParamId id, DType wanted) const;
  Engine* engine_ = nullptr;
  const ParameterSet* parameters_ = nullptr;
  const ParameterPlace* places_ = nullptr;   // by parameter
  const Unit* unit_ = nullptr;
  int unit_index_ = -1;
  bool mixed_ = false;
  bool backward_ = false;
  bool accumulate_ = false;
  const void* params_ = nullptr;
  float* grads_ = nullptr;
};

/// One micro-batch of one lane on this rank.
class MicroBatch {
 public:
  std::int64_t step() const { return step_; }
  int lane() const { return lane_; }
  int index() const { return index_; }            ///< micro-batch within the lane
  /// Running numbers of its samples over the whole training, `micro_batch` of them: a function of (step, lane, index)
  /// alone. A data source maps them to data.
  std::span<const std::int64_t> samples() const { return samples_; }

  UnitUse forward(UnitId unit);
  UnitUse backward(UnitId unit);
  /// Sum of the loss over this micro-batch's valid tokens, and how many there were (0 is fine).
  void report(double loss_sum, std::int64_t tokens);
  /// Charges the scope to data wait: `auto wait = batch.data_wait();`
  AccountScope data_wait();

 private:
  friend class Engine;
  friend class Step;
  Engine* engine_ = nullptr;
  std::int64_t step_ = 0;
  int lane_ = 0;
  int index_ = 0;
  std::vector<std::int64_t> samples_;
};

/// One step on this rank: its micro-batches in the engine's order. The trainer loops over all of them:
/// `for (MicroBatch& batch : step) { ... }`. In an evaluation only forward scopes are opened.
class Step {
 public:
  class Iterator {
   public:
    MicroBatch& operator*() const;
    Iterator& operator++();
    bool operator!=(std::nullptr_t) const;

   private:
    friend class Step;
    explicit Iterator(Step* step) : step_(step) {}
    Step* step_;
  };
  std::int64_t index() const { return index_; }
  bool evaluating() const { return evaluating_; }
  Iterator begin();
  std::nullptr_t end() const { return nullptr; }

 private:
  friend class Engine;
  Engine* engine_ = nullptr;
  std::int64_t index_ = 0;
  bool evaluating_ = false;
};

}  // namespace bellows
