#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "bellows/comm/communicator.h"
#include "lane_data.h"
#include "ranks.h"

namespace bellows {
namespace {

// Who adds up what: even chunks, small chunks dealt out in turn, everything at the last rank.
std::vector<OwnedInterval> owners(int shape, std::size_t origin, std::size_t count, int world_size) {
  const std::size_t step = shape == 0   ? (count + world_size - 1) / world_size
                           : shape == 1 ? count / (3 * world_size) + 1
                                        : count;
  std::vector<OwnedInterval> owned;
  for (std::size_t c = 0; step > 0 && c * step < count; ++c)
    owned.push_back({shape == 2 ? world_size - 1 : static_cast<int>(c) % world_size,
                     {origin + c * step, origin + std::min(count, (c + 1) * step)}});
  return owned;
}

struct Arena {
  explicit Arena(Communicator& comm) : memory(std::size_t{6} << 20), window(comm.expose(memory, 0, memory.size())) {}
  SharedMemory memory;
  Window window;
};

/// Every rank folds its lanes itself and brings what is left; the sums go over the first piece or elsewhere.
template <class T>
void all_reduce_lanes(Communicator& comm, Arena& pieces, Arena& sums, const LaneAssignment& assignment, int lanes,
                      std::size_t count, int shape, bool in_place) {
  const auto& world = comm.world();
  const std::size_t stride = count * sizeof(T) + 64, offset = in_place ? 0 : 192, origin = 100;
  AllReduceArgs args;
  args.window = pieces.window;
  args.origin = origin;
  args.owned = owners(shape, origin, count, world.world_size);
  args.destination = in_place ? pieces.window : sums.window;
  args.offset = offset;
  std::byte* const place = (in_place ? pieces : sums).memory.data() + offset;
  args.sums = place;
  args.dtype = dtype_of<T>();
  for (int r = 0; r < world.world_size; ++r) {
    const auto spans = fold_lanes(assignment[r]);
    for (std::size_t p = 0; p < spans.size(); ++p) args.pieces.push_back({r, spans[p], p * stride});
  }
  for (std::size_t i = 0; i < count; ++i) {
    TreeSum<T> sum;
    for (const int lane : assignment[world.rank]) sum.push(lane, T(lane_value(lane, i)));
    for (std::size_t p = 0; p < sum.values.size(); ++p)
      std::memcpy(pieces.memory.data() + p * stride + i * sizeof(T), &sum.values[p], sizeof(T));
  }
  if (!in_place) std::memset(place, 0xff, count * sizeof(T) + 1);
  comm.all_reduce(args).wait();
  for (std::size_t i = 0; i < count; ++i) {
    const T expected = whole_sum<T>(lanes, i);
    require(std::memcmp(place + i * sizeof(T), &expected, sizeof(T)) == 0,
            "sum " + std::to_string(i) + " of " + std::to_string(count) + (in_place ? " in place" : ""));
  }
  if (!in_place) require(place[count * sizeof(T)] == std::byte{0xff}, "nothing written behind the sums");
}

template <class T>
void all_reduce_everything(Communicator& comm, Arena& pieces, Arena& sums) {
  const int n = comm.world().world_size;
  for (const std::size_t count : {0u, 1u, 7u, 1000u, 70'001u}) {
    if (count > 20'000 && (sizeof(T) == 2 || n > 4)) continue;  // the plain loop takes its time
    for (const int lanes : {8, 11}) {
      if (lanes < n || (count > 20'000 && lanes == 11)) continue;
      const int shape = static_cast<int>(count % 3);
      all_reduce_lanes<T>(comm, pieces, sums, contiguous_lanes(lanes, n), lanes, count, shape, true);
      all_reduce_lanes<T>(comm, pieces, sums, contiguous_lanes(lanes, n), lanes, count, (shape + 1) % 3, false);
      if (count <= 20'000)
        all_reduce_lanes<T>(comm, pieces, sums, strided_lanes(lanes, n), lanes, count, (shape + 2) % 3, false);
    }
  }
}

class AllReduce : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  void run(const Body& body) {
    const auto& [transport, world_size] = GetParam();
    const auto outcomes = run_on(transport, world_size, body);
    for (int r = 0; r < world_size; ++r) {
      EXPECT_EQ(outcomes[r].text, "") << "rank " << r;
      EXPECT_EQ(outcomes[r].exit_code + outcomes[r].signal, 0) << "rank " << r;
    }
  }
};

TEST_P(AllReduce, HasTheBitsOfAPlainLoopOnEveryRankInPlaceAndElsewhere) {
  run([](int, Communicator& comm) {
    Arena pieces(comm), sums(comm);
    all_reduce_everything<float>(comm, pieces, sums);
    all_reduce_everything<bf16>(comm, pieces, sums);
    all_reduce_everything<f16>(comm, pieces, sums);
    return "";
  });
}

TEST_P(AllReduce, RefusesADestinationThatIsTooSmallBeforeAnythingIsSent) {
  run([](int rank, Communicator& comm) {
    SharedMemory memory(8192);
    const Window source = comm.expose(memory, 0, 8192), small = comm.expose(memory, 0, 64);
    AllReduceArgs args;
    args.window = source;
    args.destination = small;
    args.sums = memory.data();
    args.owned = {{0, {0, 1000}}};
    for (int r = 0; r < comm.world().world_size; ++r) args.pieces.push_back({r, {r, 1}, 0});
    bool refused = false;
    try {
      comm.all_reduce(args).wait();
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    require(refused, "refused");
    std::vector<double> still_usable = {rank == 0 ? 1.0 : 0.0};
    comm.all_reduce_sum(still_usable);
    require(still_usable[0] == 1, "the communicator goes on");
    return "";
  });
}

std::string name_of_case(const testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  return std::get<0>(info.param) + std::to_string(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Transports, AllReduce,
                         testing::Combine(testing::Values("inproc", "shm"), testing::Values(1, 2, 3, 4, 5, 8)),
                         name_of_case);

}  // namespace
}  // namespace bellows
