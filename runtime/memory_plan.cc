#include "bellows/runtime/memory_plan.h"

#include <algorithm>

#include "bellows/comm/communicator.h"
#include "places.h"
#include "stage.h"

namespace bellows {

std::vector<MemoryLine> plan_memory(const ParameterSet& parameters, const EngineOptions& options, int states,
                                    int world_size, int rank) {
  const Stage stage = Stage::of(options.stage);
  const std::size_t total = parameters.total(), world = world_size;
  const ChunkTable table(parameters);
  const Places places(parameters, table, options.precision);
  const auto share = [&](bool sharded, std::size_t bytes_each) {
    return sharded ? (total + world - 1) / world * bytes_each : total * bytes_each;
  };
  const bool in_rounds = stage.shards_gradients && world_size > 1;

  std::size_t gradients = 0, buckets = 0, gathered = 0;
  if (in_rounds) {
    std::size_t levels = 1, held = 0, largest = 0, bucket = 0;
    std::vector<LaneSpan> carry;
    for (int first = 0; first < options.lanes; first += world_size) {
      std::vector<LaneSpan> pieces;
      for (int lane = first; lane < std::min(first + world_size, options.lanes); ++lane) pieces.push_back({lane, 1});
      carry = result_spans(carry, pieces, first + world_size >= options.lanes);
      levels = std::max(levels, carry.size());
    }
    gradients = levels * share(true, sizeof(float));
    for (auto unit = parameters.units().rbegin(); unit != parameters.units().rend(); ++unit) {
      const std::size_t bytes = unit->count * sizeof(float);
      if (unit->backward_uses > 1) {
        held += bytes;
        bucket = 0;
        continue;
      }
      bucket = bucket > 0 && bucket + bytes <= options.bucket_bytes ? bucket + bytes : bytes;
      largest = std::max(largest, bucket);
    }
    buckets = options.micro_batches_per_lane > 1 ? total * sizeof(float) : held + 2 * largest;
  } else {
    const auto lanes = contiguous_lanes(options.lanes, world_size)[rank];
    gradients = static_cast<std::size_t>(fold_depth(lanes)) * total * sizeof(float);
  }
  if (stage.shards_parameters && world_size > 1)
    gathered = (2 + static_cast<std::size_t>(options.prefetch_units)) * places.largest_unit_bytes();
  std::size_t compute = places.total_bytes();
  if (stage.shards_parameters) {
    compute = (compute + world - 1) / world;
    if (places.mixed()) {  // even shares of elements are not even in bytes
      compute = 0;
      for (const int c : ShardLayout(table, world_size).owned(rank))
        compute = places.compact(compute, c) + places.of_chunk(c).size();
    }
  }
  return {{"parameters", compute},
          {"master weights", places.all(DType::kF32) ? 0 : share(stage.shards_optimizer, sizeof(float))},
          {"optimizer state", share(stage.shards_optimizer, sizeof(float)) * static_cast<std::size_t>(states)},
          {"gradients", gradients},
          {"reduction buckets", buckets},
          {"gathered units", gathered}};
}

}  // namespace bellows
