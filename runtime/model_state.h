#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bellows/base/memory.h"
#include "bellows/base/thread_pool.h"
#include "bellows/comm/communicator.h"
#include "bellows/optimizer/optimizer.h"
#include "bellows/runtime/parameter_set.h"
#include "bellows/runtime/shard_layout.h"
#include "places.h"
#include "stage.h"

namespace bellows {

/// A shard's place in a rank's own memory: the rank's chunks one after another, without padding.
class CompactShard {
 public:
  CompactShard() = default;
  CompactShard(const ChunkTable& table, std::vector<int> chunks);

  const std::vector<int>& chunks() const { return chunks_; }
  bool holds(int chunk) const { return offset_[chunk] != kNone; }
  std::size_t offset(int chunk) const { return offset_[chunk]; }   ///< in elements
  std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  std::vector<int> chunks_;
  std::vector<std::size_t> offset_;
  std::size_t size_ = 0;
};

/// Everything that outlives a generation: parameters in the compute dtype, float32 master weights, optimizer state.
/// What is sharded lies compactly, in the order of the chunks that this rank holds; parameters of stages 0-2 lie whole.
/// Where all parameters are float32 in compute they are the master weights, so one kind of storage serves both.
///
/// "Kinds" are the float32 arrays that a checkpoint keeps: 0 is the master weights, then the optimizer's states.
class ModelState {
 public:
  ModelState(const ParameterSet& parameters, const ChunkTable& table, const Optimizer& optimizer, Stage stage,
             DType precision);

  /// Memory for the chunks that `rank` has under `layout`; contents are zero. Drops what was there.
  void allocate(const ShardLayout& layout, int rank);
  bool allocated() const { return allocated_; }

  const ParameterSet& parameters() const { return parameters_; }
  const ChunkTable& table() const { return table_; }
  const Stage& stage() const { return stage_; }
  const Places& places() const { return places_; }
  int kinds() const { return static_cast<int>(kind_names_.size()); }
  const std::vector<std::string>& kind_names() const { return kind_names_; }
  /// Chunks whose master weights and optimizer state this rank updates.
  const CompactShard& shard() const { return shard_; }

  std::span<float> values(int kind, int chunk);          ///< chunk must be in shard()
  /// The compute copy of a chunk in shard(), laid out as places() says; null where it is the master weights.
  std::byte* compute(int chunk);
  /// The memory that peers gather parameters from: whole (stages 0-2) or this rank's compact shard (stage 3).
  const SharedMemory& parameter_memory() const { return params_; }
  /// Whole parameters are up to date everywhere on this rank (always true where they are sharded).
  bool parameters_current() const { return parameters_current_; }
  void set_parameters_current(bool current) { parameters_current_ = current; }

  /// Starting values of all that this rank holds; whole parameters too, so nothing needs to be gathered.
  void initialise(std::uint64_t seed, ThreadPool& pool);
  /// After master weights were loaded from elsewhere: brings the compute copy of the own chunks up to date.
  void refresh_compute(ThreadPool& pool);

  struct Bytes {
    std::size_t parameters = 0, master = 0, optimizer = 0;
  };
  Bytes bytes() const;

  // -- Moving to another layout (collective; see reshard.cc) --
  /// One thing that moves by chunk: where it lies, who holds it.
  struct Store {
    std::string name;
    bool whole = false;      ///< every member needs every chunk; these are the parameters in compute
  };
  std::vector<Store> stores() const;
  std::size_t bytes_of(const Store& store, int chunk) const;
  std::vector<int> held(const Store& store) const;       ///< chunks of it that are up to date here

 private:
  friend class StateMover;
  const ParameterSet& parameters_;
  const ChunkTable& table_;
  Stage stage_;
  Places places_;
  bool separate_masters_;                // from the compute copy
  std::vector<std::string> kind_names_;
  bool allocated_ = false;
  bool parameters_current_ = false;
  // The shard's size in compute; fills compute_at_.
  std::size_t place_compute();

  CompactShard shard_;
  std::vector<std::size_t> compute_at_;  // stage 3: where chunks of the shard lie in params_, by chunk, in bytes
  SharedMemory params_;                  // in compute
  std::vector<HostMemory> arrays_;       // by kind; arrays_[0] empty where params_ are the master weights
};

}  // namespace bellows
