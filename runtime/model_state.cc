#include "model_state.h"

#include <numeric>

#include "bellows/base/error.h"

namespace bellows {
namespace {

std::vector<int> all_chunks(const ChunkTable& table) {
  std::vector<int> all(table.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

CompactShard::CompactShard(const ChunkTable& table, std::vector<int> chunks)
    : chunks_(std::move(chunks)), offset_(table.size(), kNone) {
  for (const int c : chunks_) {
    offset_[c] = size_;
    size_ += table[c].size();
  }
}

ModelState::ModelState(const ParameterSet& parameters, const ChunkTable& table, const Optimizer& optimizer, Stage stage,
                       DType compute)
    : parameters_(parameters), table_(table), stage_(stage), compute_(compute) {
  kind_names_ = optimizer.state_names();
  kind_names_.insert(kind_names_.begin(), "master");
  BELLOWS_CHECK_LE(kinds() - 1, Slice::kMaxStates);
  arrays_.resize(kinds());
}

void ModelState::allocate(const ShardLayout& layout, int rank) {
  shard_ = CompactShard(table_, stage_.shards_optimizer ? layout.owned(rank) : all_chunks(table_));
  const std::size_t own = shard_.size();
  params_ = SharedMemory((stage_.shards_parameters ? own : parameters_.total()) * size_of(compute_));
  for (int kind = 0; kind < kinds(); ++kind)
    arrays_[kind] = kind == 0 && compute_ == DType::kF32 ? HostMemory() : HostMemory(own * sizeof(float));
  allocated_ = true;
  parameters_current_ = stage_.shards_parameters;
}

std::span<float> ModelState::values(int kind, int chunk) {
  const std::size_t count = table_[chunk].size();
  if (kind > 0 || compute_ != DType::kF32) return arrays_[kind].as<float>().subspan(shard_.offset(chunk), count);
  return params_.as<float>().subspan(stage_.shards_parameters ? shard_.offset(chunk) : table_[chunk].begin, count);
}

std::span<bf16> ModelState::low(int chunk) {
  if (compute_ == DType::kF32) return {};
  return params_.as<bf16>().subspan(stage_.shards_parameters ? shard_.offset(chunk) : table_[chunk].begin,
                                    table_[chunk].size());
}

void ModelState::initialise(std::uint64_t seed, ThreadPool& pool) {
  const auto& own = shard_.chunks();
  pool.run(own.size(), [&](std::size_t i) { parameters_.initialise(seed, table_[own[i]], values(0, own[i])); });
  for (int kind = 1; kind < kinds(); ++kind)
    pool.run(own.size(), [&](std::size_t i) {
      const auto state = values(kind, own[i]);
      std::fill(state.begin(), state.end(), 0.0f);
    });
  refresh_low(pool);
  if (stage_.shards_parameters) return;
  pool.run(table_.size(), [&](std::size_t c) {
    if (shard_.holds(static_cast<int>(c))) return;
    const Interval range = table_[c];
    if (compute_ == DType::kF32) {
      parameters_.initialise(seed, range, params_.as<float>().subspan(range.begin, range.size()));
    } else {
      std::vector<float> exact(range.size());
      parameters_.initialise(seed, range, exact);
      for (std::size_t i = 0; i < exact.size(); ++i) params_.as<bf16>()[range.begin + i] = bf16(exact[i]);
    }
  });
  parameters_current_ = true;
}

void ModelState::refresh_low(ThreadPool& pool) {
  if (compute_ == DType::kF32) return;
  const auto& own = shard_.chunks();
  pool.run(own.size(), [&](std::size_t i) {
    const auto exact = values(0, own[i]);
    const auto rounded = low(own[i]);
    for (std::size_t e = 0; e < exact.size(); ++e) rounded[e] = bf16(exact[e]);
  });
}

ModelState::Bytes ModelState::bytes() const {
  Bytes sum;
  sum.parameters = params_.size();
  sum.master = arrays_[0].size();
  for (int kind = 1; kind < kinds(); ++kind) sum.optimizer += arrays_[kind].size();
  return sum;
}

std::vector<ModelState::Store> ModelState::stores() const {
  std::vector<Store> result;
  if (!stage_.shards_parameters) result.push_back({"parameters", compute_, true});
  for (int kind = 0; kind < kinds(); ++kind) {
    const bool in_parameters = kind == 0 && compute_ == DType::kF32 && !stage_.shards_parameters;
    if (!in_parameters) result.push_back({kind_names_[kind], DType::kF32, false});
  }
  return result;
}

std::vector<int> ModelState::held(const Store& store) const {
  if (store.whole && parameters_current_) return all_chunks(table_);
  return shard_.chunks();
}

}  // namespace bellows
