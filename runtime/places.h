#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "bellows/base/dtype.h"
#include "bellows/runtime/parameter_set.h"
#include "bellows/runtime/shard_layout.h"
#include "bellows/runtime/step.h"

namespace bellows {

/// Where elements lie in the compute copy of a model: each in the dtype of its parameter, unit after unit, in the order
/// of the index space. Where all have one dtype that is the index space itself. In a mixed model, units and float32
/// parameters start at multiples of 4 bytes; whatever fills the gap before them belongs to the element in front of it,
/// so that the bytes of chunks follow one another as the chunks do.
class Places {
 public:
  Places(const ParameterSet& parameters, const ChunkTable& table, DType precision);

  /// Elements of one dtype that lie side by side.
  struct Run {
    Interval elements;
    DType dtype = DType::kF32;
    std::size_t at = 0;  ///< byte of the first one
  };

  bool mixed() const { return mixed_; }
  bool mixed(int unit) const { return mixed_units_[unit]; }
  bool all(DType dtype) const { return !mixed_ && dtype_ == dtype; }
  /// What the compute copy is made of, as something to gather: one element, or 2 bytes of a mixed model.
  DType word() const { return mixed_ ? DType::kBF16 : dtype_; }
  std::size_t total_bytes() const { return total_bytes_; }
  std::size_t largest_unit_bytes() const;
  /// In bytes of the whole compute copy.
  Interval of_unit(int unit) const { return units_[unit]; }
  Interval of_chunk(std::size_t chunk) const { return chunks_[chunk]; }
  /// By parameter, relative to its unit.
  const std::vector<ParameterPlace>& parameters() const { return parameters_; }
  /// Where `element` of the index space begins.
  std::size_t byte_of(std::size_t element) const;
  /// How far behind the first byte of `chunk` that is.
  std::size_t within_chunk(std::size_t chunk, std::size_t element) const {
    return byte_of(element) - chunks_[chunk].begin;
  }
  /// The first byte from `at` on where `chunk` may lie in a compact shard: float32 keeps its alignment.
  std::size_t compact(std::size_t at, std::size_t chunk) const {
    return mixed_ ? at + ((chunks_[chunk].begin - at) & 3) : at;
  }
  /// Runs of `elements`, cut to them.
  std::vector<Run> runs_in(Interval elements) const;
  /// Writes elements of a chunk in their dtypes: `exact` are all of them, `to` is where the chunk lies.
  void write(std::size_t chunk, Interval elements, std::span<const float> exact, std::byte* to) const;

 private:
  bool mixed_ = false;
  DType dtype_ = DType::kF32;
  std::size_t total_bytes_ = 0;
  std::vector<Run> runs_;
  std::vector<Interval> units_;
  std::vector<bool> mixed_units_;
  std::vector<Interval> chunks_;
  std::vector<ParameterPlace> parameters_;
};

}  // namespace bellows
