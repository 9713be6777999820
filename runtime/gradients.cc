#include "gradients.h"

#include <algorithm>

#include "bellows/base/error.h"

namespace bellows {
namespace {

constexpr int kRing = 2;  // one slot is being reduced while the next is being filled

// Fixed cut for folding in parallel: by elements, never by thread.
constexpr std::size_t kFoldElements = std::size_t{1} << 16;

void add_into(std::span<float> sum, std::span<const float> more) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
}

}  // namespace

Gradients::Gradients(const ParameterSet& parameters, const ChunkTable& table, const Options& options, ThreadPool& pool,
                     Waiter& waiter)
    : parameters_(parameters), table_(table), options_(options), pool_(pool), waiter_(waiter) {
  const auto& units = parameters.units();
  bucket_of_.resize(units.size());
  // Backward runs from the last unit to the first, so buckets are filled from the end.
  for (int u = static_cast<int>(units.size()) - 1; u >= 0; --u) {
    const Interval range{units[u].begin, units[u].begin + units[u].count};
    const bool held = units[u].backward_uses > 1;
    const bool fits = !buckets_.empty() && !held && !buckets_.back().held &&
                      (buckets_.back().range.end - range.begin) * sizeof(float) <= options.bucket_bytes;
    if (fits) {
      buckets_.back().first_unit = u;
      buckets_.back().range.begin = range.begin;
    } else {
      Bucket bucket;
      bucket.first_unit = bucket.last_unit = u;
      bucket.range = range;
      bucket.held = held;
      buckets_.push_back(bucket);
    }
    bucket_of_[u] = static_cast<int>(buckets_.size()) - 1;
  }
}

void Gradients::attach(Communicator& comm, const ShardLayout& layout, int lanes) {
  const World& world = comm.world();
  comm_ = &comm;
  layout_ = layout;
  alone_ = world.world_size == 1;
  plan_.in_rounds = options_.sharded && !alone_;
  plan_.lanes = plan_.in_rounds ? strided_lanes(lanes, world.world_size) : contiguous_lanes(lanes, world.world_size);
  plan_.rounds = 0;
  for (const auto& mine : plan_.lanes) plan_.rounds = std::max(plan_.rounds, static_cast<int>(mine.size()));
  own_ = CompactShard(table_, layout.owned(world.rank));

  std::size_t bytes = 0;
  carries_.clear();
  if (plan_.in_rounds) {
    // Lanes with several micro-batches are summed over them before they travel, so every bucket keeps its place.
    const bool own_places = options_.micro_batches_per_lane > 1;
    ring_bytes_ = 0;
    for (Bucket& bucket : buckets_) {
      const std::size_t size = (bucket.range.size() * sizeof(float) + 63) / 64 * 64;
      bucket.fixed_slot = kNone;
      if (own_places || bucket.held) {
        bucket.fixed_slot = bytes;
        bytes += size;
      } else {
        ring_bytes_ = std::max(ring_bytes_, size);
      }
    }
    ring_offset_.clear();
    for (int i = 0; i < kRing && ring_bytes_ > 0; ++i) {
      ring_offset_.push_back(bytes);
      bytes += ring_bytes_;
    }
    ring_work_.assign(ring_offset_.size(), {});
    std::vector<LaneSpan> carry;
    std::size_t levels = 1;
    for (int t = 0; t < plan_.rounds; ++t) {
      carries_.push_back(carry);
      std::vector<LaneSpan> pieces;
      for (int lane = t * world.world_size; lane < std::min((t + 1) * world.world_size, lanes); ++lane)
        pieces.push_back({lane, 1});
      carry = result_spans(carry, pieces, t + 1 == plan_.rounds);
      levels = std::max(levels, carry.size());
    }
    carries_.push_back(carry);
    BELLOWS_CHECK_EQ(carry.size(), std::size_t{1});
    const std::size_t needed = levels * own_.size() * sizeof(float);
    if (accumulators_.size() != needed) accumulators_ = HostMemory(needed);
  } else {
    bytes = static_cast<std::size_t>(fold_depth(plan_.lanes[world.rank])) * parameters_.total() * sizeof(float);
    accumulators_ = HostMemory();
  }
  if (memory_.size() != bytes) memory_ = SharedMemory(bytes);
  window_ = comm.expose(memory_, 0, bytes);
}

void Gradients::detach() {
  comm_ = nullptr;
  window_ = Window{};
  pending_.clear();
  for (auto& works : ring_work_) works.clear();
  for (Bucket& bucket : buckets_) bucket.fixed_work.clear();
}

void Gradients::start_step() {
  pending_.clear();
  for (auto& works : ring_work_) works.clear();
  for (Bucket& bucket : buckets_) bucket.fixed_work.clear();
  stack_.clear();
  next_ring_ = 0;
}

void Gradients::start_lane(int round) {
  round_ = round;
  for (Bucket& bucket : buckets_) {
    bucket.units_left = bucket.last_unit - bucket.first_unit + 1;
    bucket.slot = bucket.fixed_slot;
    bucket.ring = -1;
  }
  if (plan_.in_rounds) return;
  const auto& lanes = plan_.lanes[comm_->world().rank];
  top_ = stack_.size();
  // stack_ keeps the lane count of each finished subtree; the spans are rebuilt from the lane numbers.
  std::vector<LaneSpan> spans;
  int at = lanes[0];
  for (const int count : stack_) {
    spans.push_back({at, count});
    at += count;
  }
  spans.push_back({lanes[round], 1});
  folds_ = 0;
  while (spans.size() > 1 && lane_siblings(spans[spans.size() - 2], spans.back())) {
    spans[spans.size() - 2].count += spans.back().count;
    spans.pop_back();
    ++folds_;
  }
  stack_.clear();
  for (const LaneSpan& span : spans) stack_.push_back(span.count);
}

float* Gradients::open(int unit) {
  Bucket& bucket = buckets_[bucket_of_[unit]];
  const std::size_t begin = parameters_.units()[unit].begin;
  if (!plan_.in_rounds) return memory_.as<float>().data() + top_ * parameters_.total() + begin;
  // A slot of its own is written again while peers may still read what the round before left there.
  for (const Work& work : bucket.fixed_work) waiter_.wait(work);
  bucket.fixed_work.clear();
  if (bucket.slot == kNone) {
    bucket.ring = next_ring_;
    next_ring_ = (next_ring_ + 1) % static_cast<int>(ring_offset_.size());
    for (const Bucket& other : buckets_)
      if (&other != &bucket && other.ring == bucket.ring && other.units_left > 0 && other.slot != kNone)
        throw UserError("backward scope of unit '" + parameters_.units()[unit].name + "' opened while '" +
                        parameters_.units()[other.first_unit].name +
                        "' and another are unfinished; finish one first, "
                        "or declare units that are used twice with backward_uses = 2");
    wait_for_ring(bucket.ring);
    bucket.slot = ring_offset_[bucket.ring];
  }
  return reinterpret_cast<float*>(memory_.data() + bucket.slot) + (begin - bucket.range.begin);
}

void Gradients::wait_for_ring(int ring) {
  for (const Work& work : ring_work_[ring]) waiter_.wait(work);
  ring_work_[ring].clear();
}

void Gradients::complete(int unit, bool idle) {
  Bucket& bucket = buckets_[bucket_of_[unit]];
  if (!plan_.in_rounds && !idle && folds_ > 0) {
    const Unit& u = parameters_.units()[unit];
    float* const base = memory_.as<float>().data();
    for (std::size_t fold = 0; fold < folds_; ++fold) {
      float* const below = base + (top_ - fold - 1) * parameters_.total() + u.begin;
      const float* const above = base + (top_ - fold) * parameters_.total() + u.begin;
      pool_.run((u.count + kFoldElements - 1) / kFoldElements, [&](std::size_t i) {
        const std::size_t at = i * kFoldElements, n = std::min(kFoldElements, u.count - at);
        add_into({below + at, n}, {above + at, n});
      });
    }
  }
  if (--bucket.units_left > 0) return;
  const bool last_lane = round_ + 1 == static_cast<int>(plan_.lanes[comm_->world().rank].size());
  if (plan_.in_rounds || last_lane) reduce(bucket);
}

// Neighbouring chunks of one owner as one interval.
std::vector<OwnedInterval> Gradients::owned_in(Interval range) const {
  std::vector<OwnedInterval> result;
  for (std::size_t c = table_.find(range.begin); c < table_.size() && table_[c].begin < range.end; ++c) {
    const Interval clipped{std::max(table_[c].begin, range.begin), std::min(table_[c].end, range.end)};
    const int owner = layout_.owner(c);
    if (!result.empty() && result.back().rank == owner && result.back().interval.end == clipped.begin)
      result.back().interval.end = clipped.end;
    else
      result.push_back({owner, clipped});
  }
  return result;
}

void Gradients::reduce(Bucket& bucket) {
  if (alone_ && stack_.size() == 1) return;  // the only rank has folded everything
  if (probe_) probe_();
  const World& world = comm_->world();
  const std::size_t total = parameters_.total();
  const std::size_t step = std::max<std::size_t>(options_.bucket_bytes / sizeof(float), 1024);
  for (std::size_t begin = bucket.range.begin; begin < bucket.range.end; begin += step) {
    const Interval range{begin, std::min(begin + step, bucket.range.end)};
    ReduceScatterArgs args;
    args.window = window_;
    args.origin = range.begin;
    args.owned = owned_in(range);
    args.what = "reduce_scatter";
    if (plan_.in_rounds) {
      const std::size_t offset = bucket.slot + (range.begin - bucket.range.begin) * sizeof(float);
      for (int rank = 0; rank < world.world_size; ++rank)
        if (round_ < static_cast<int>(plan_.lanes[rank].size()))
          args.pieces.push_back({rank, {plan_.lanes[rank][round_], 1}, offset});
      args.complete = round_ + 1 == plan_.rounds;
      // Compact order is canonical order, so what this rank owns of a range stands together in its shard.
      std::size_t at = 0;
      if (const auto mine = intervals_of(args.owned, world.rank); !mine.empty()) {
        const auto& chunks = own_.chunks();
        const auto it =
            std::find_if(chunks.begin(), chunks.end(), [&](int c) { return table_[c].end > mine.front().begin; });
        at = own_.offset(*it) + mine.front().begin - table_[*it].begin;
      }
      const auto places = [&](const std::vector<LaneSpan>& spans) {
        std::vector<LocalPiece> pieces;
        for (std::size_t level = 0; level < spans.size(); ++level)
          pieces.push_back({spans[level], accumulators_.as<float>().data() + level * own_.size() + at});
        return pieces;
      };
      args.carry = places(carries_[round_]);
      args.results = places(carries_[round_ + 1]);
    } else {
      for (int rank = 0; rank < world.world_size; ++rank) {
        const auto spans = fold_lanes(plan_.lanes[rank]);
        for (std::size_t p = 0; p < spans.size(); ++p)
          args.pieces.push_back({rank, spans[p], (p * total + range.begin) * sizeof(float)});
      }
      args.complete = true;
      LaneSpan all{0, 0};
      for (const auto& lanes : plan_.lanes) all.count += static_cast<int>(lanes.size());
      args.results = {{all, memory_.as<float>().data() + range.begin, true}};
    }
    const Work work = comm_->reduce_scatter(std::move(args));
    pending_.push_back({work, range});
    if (bucket.ring >= 0)
      ring_work_[bucket.ring].push_back(work);
    else
      bucket.fixed_work.push_back(work);
  }
}

void Gradients::finish() {
  for (const Pending& pending : pending_) waiter_.wait(pending.work);
  if (options_.replicate_sums && !alone_) {
    // In place: buffer 0 of every rank holds its own chunks' sums; nobody reads partial sums there any more.
    std::vector<Work> gathers;
    for (const Pending& pending : pending_) {
      AllGatherArgs args;
      args.window = window_;
      args.offset = pending.range.begin * sizeof(float);
      args.origin = pending.range.begin;
      args.what = "all_gather of gradient sums";
      for (const OwnedInterval& one : owned_in(pending.range)) args.owned.push_back({one.rank, one.interval});
      gathers.push_back(comm_->all_gather(std::move(args)));
    }
    for (const Work& work : gathers) waiter_.wait(work);
  }
  pending_.clear();
  for (auto& works : ring_work_) works.clear();
  for (Bucket& bucket : buckets_) bucket.fixed_work.clear();
}

std::span<const float> Gradients::sum(int chunk) const {
  const Interval range = table_[chunk];
  if (plan_.in_rounds) return accumulators_.as<float>().subspan(own_.offset(chunk), range.size());
  return memory_.as<float>().subspan(range.begin, range.size());
}

Gradients::Bytes Gradients::bytes() const {
  Bytes sum;
  (plan_.in_rounds ? sum.slots : sum.buffers) = memory_.size();
  sum.accumulators = accumulators_.size();
  return sum;
}

}  // namespace bellows
