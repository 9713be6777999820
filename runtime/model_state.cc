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
                       DType precision)
    : parameters_(parameters),
      table_(table),
      stage_(stage),
      places_(parameters, table, precision),
      separate_masters_(!places_.all(DType::kF32)) {
  kind_names_ = optimizer.state_names();
  kind_names_.insert(kind_names_.begin(), "master");
  BELLOWS_CHECK_LE(kinds() - 1, Slice::kMaxStates);
  arrays_.resize(kinds());
}

void ModelState::allocate(const ShardLayout& layout, int rank) {
  shard_ = CompactShard(table_, stage_.shards_optimizer ? layout.owned(rank) : all_chunks(table_));
  const std::size_t own = shard_.size();
  params_ = SharedMemory(stage_.shards_parameters ? place_compute() : places_.total_bytes());
  for (int kind = 0; kind < kinds(); ++kind)
    arrays_[kind] = kind == 0 && !separate_masters_ ? HostMemory() : HostMemory(own * sizeof(float));
  allocated_ = true;
  parameters_current_ = stage_.shards_parameters;
}

std::span<float> ModelState::values(int kind, int chunk) {
  const std::size_t count = table_[chunk].size();
  if (kind > 0 || separate_masters_) return arrays_[kind].as<float>().subspan(shard_.offset(chunk), count);
  return params_.as<float>().subspan(stage_.shards_parameters ? shard_.offset(chunk) : table_[chunk].begin, count);
}

std::size_t ModelState::place_compute() {
  compute_at_.assign(table_.size(), 0);
  std::size_t at = 0;
  for (const int c : shard_.chunks()) {
    compute_at_[c] = places_.compact(at, c);
    at = compute_at_[c] + places_.of_chunk(c).size();
  }
  return at;
}

std::byte* ModelState::compute(int chunk) {
  if (!separate_masters_) return nullptr;
  return params_.data() + (stage_.shards_parameters ? compute_at_[chunk] : places_.of_chunk(chunk).begin);
}

void ModelState::initialise(std::uint64_t seed, ThreadPool& pool) {
  const auto& own = shard_.chunks();
  pool.run(own.size(), [&](std::size_t i) { parameters_.initialise(seed, table_[own[i]], values(0, own[i])); });
  for (int kind = 1; kind < kinds(); ++kind)
    pool.run(own.size(), [&](std::size_t i) {
      const auto state = values(kind, own[i]);
      std::fill(state.begin(), state.end(), 0.0f);
    });
  refresh_compute(pool);
  if (stage_.shards_parameters) return;
  pool.run(table_.size(), [&](std::size_t c) {
    if (shard_.holds(static_cast<int>(c))) return;
    const Interval range = table_[c];
    if (!separate_masters_) {
      parameters_.initialise(seed, range, params_.as<float>().subspan(range.begin, range.size()));
    } else {
      std::vector<float> exact(range.size());
      parameters_.initialise(seed, range, exact);
      places_.write(c, range, exact, params_.data() + places_.of_chunk(c).begin);
    }
  });
  parameters_current_ = true;
}

void ModelState::refresh_compute(ThreadPool& pool) {
  if (!separate_masters_) return;
  const auto& own = shard_.chunks();
  pool.run(own.size(),
           [&](std::size_t i) { places_.write(own[i], table_[own[i]], values(0, own[i]), compute(own[i])); });
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
  if (!stage_.shards_parameters) result.push_back({"parameters", true});
  for (int kind = 0; kind < kinds(); ++kind) {
    const bool in_parameters = kind == 0 && !separate_masters_ && !stage_.shards_parameters;
    if (!in_parameters) result.push_back({kind_names_[kind], false});
  }
  return result;
}

std::size_t ModelState::bytes_of(const Store& store, int chunk) const {
  return store.whole ? places_.of_chunk(chunk).size() : table_[chunk].size() * sizeof(float);
}

std::vector<int> ModelState::held(const Store& store) const {
  if (store.whole && parameters_current_) return all_chunks(table_);
  return shard_.chunks();
}

}  // namespace bellows
