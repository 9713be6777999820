#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "bellows/comm/communicator.h"
#include "lane_data.h"
#include "ranks.h"

namespace bellows {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 7, 1000, 16384, 131073};  // elements

template <class T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

// Shards of three shapes: even chunks, small chunks dealt out in turn, everything at the last rank.
std::vector<Interval> shard(int shape, std::size_t count, int world_size, int rank) {
  std::vector<Interval> mine;
  if (shape == 0) {
    mine.push_back(even_chunk(count, world_size, rank));
  } else if (shape == 1) {
    const std::size_t step = std::max<std::size_t>(1, count / (3 * world_size) + 1);
    for (std::size_t c = 0; c * step < count; ++c)
      if (static_cast<int>(c % world_size) == rank) mine.push_back({c * step, std::min(count, (c + 1) * step)});
  } else if (rank == world_size - 1) {
    mine.push_back({0, count});
  }
  std::erase_if(mine, [](const Interval& interval) { return interval.size() == 0; });
  return mine;
}

std::size_t total(const std::vector<Interval>& intervals) {
  std::size_t sum = 0;
  for (const Interval& interval : intervals) sum += interval.size();
  return sum;
}

/// Memory of one test rank, made once and exposed once.
struct Arena {
  Arena(Communicator& comm, std::size_t bytes) : memory(bytes), window(comm.expose(memory, 0, bytes)) {}
  template <class T>
  T* at(std::size_t offset) {
    return reinterpret_cast<T*>(memory.data() + offset);
  }
  SharedMemory memory;
  Window window;
};

template <class T>
void check_sums(const std::string& what, const std::vector<Interval>& mine, const std::vector<T>& sums,
                const std::vector<T>& expected) {
  std::size_t at = 0;
  for (const Interval& interval : mine)
    for (std::size_t i = interval.begin; i < interval.end; ++i, ++at)
      if (!same_bits(sums[at], expected[i]))
        require(false, what + ": element " + std::to_string(i) + " is " + std::to_string(static_cast<float>(sums[at])) +
                           ", not " + std::to_string(static_cast<float>(expected[i])));
}

template <class T>
std::vector<T> expected_sums(int lanes, std::size_t count) {
  std::vector<T> sums(count);
  for (std::size_t i = 0; i < count; ++i) sums[i] = whole_sum<T>(lanes, i);
  return sums;
}

/// Each rank folds its lanes itself and brings what is left; one reduce-scatter finishes the sum.
template <class T>
void folded_lanes(Communicator& comm, Arena& arena, const LaneAssignment& assignment, int lanes, std::size_t count,
                  int shape, bool in_place, const std::vector<T>& expected) {
  const int rank = comm.world().rank, world_size = comm.world().world_size;
  const std::size_t origin = 100;  // of the index space: element numbers need not start at 0
  const std::size_t stride = count * sizeof(T) + 64;
  ReduceScatterArgs args;
  args.window = arena.window;
  args.origin = origin;
  args.complete = true;
  args.dtype = dtype_of<T>();
  args.what = "reduce_scatter folded";
  for (int r = 0; r < world_size; ++r) {
    const auto spans = fold_lanes(assignment[r]);
    for (std::size_t p = 0; p < spans.size(); ++p) args.pieces.push_back({r, spans[p], p * stride});
  }
  for (std::size_t i = 0; i < count; ++i) {
    TreeSum<T> sum;
    for (const int lane : assignment[rank]) sum.push(lane, T(lane_value(lane, i)));
    for (std::size_t p = 0; p < sum.values.size(); ++p) arena.at<T>(p * stride)[i] = sum.values[p];
  }
  const auto mine = shard(shape, count, world_size, rank);
  for (int r = 0; r < world_size; ++r)
    for (const Interval& interval : shard(shape, count, world_size, r))
      args.owned.push_back({r, {origin + interval.begin, origin + interval.end}});
  std::vector<T> sums(total(mine));
  if (in_place)
    args.results = {{{0, lanes}, arena.memory.data(), true}};
  else
    args.results = {{{0, lanes}, sums.data(), false}};
  comm.reduce_scatter(args).wait();
  if (in_place) {
    std::size_t at = 0;
    for (const Interval& interval : mine)
      for (std::size_t i = interval.begin; i < interval.end; ++i) sums[at++] = arena.at<T>(0)[i];
  }
  check_sums("folded lanes", mine, sums, expected);
}

/// Rounds over the lanes; the owner carries finished subtrees from round to round in compact arrays.
template <class T>
void rounds_with_carry(Communicator& comm, Arena& arena, int lanes, std::size_t count, int shape,
                       const std::vector<T>& expected) {
  const int rank = comm.world().rank, world_size = comm.world().world_size;
  const auto mine = shard(shape, count, world_size, rank);
  std::vector<std::vector<T>> levels(lanes, std::vector<T>(total(mine)));
  std::vector<LaneSpan> carry;
  const auto places = [&](const std::vector<LaneSpan>& spans) {
    std::vector<LocalPiece> pieces;
    for (std::size_t level = 0; level < spans.size(); ++level) pieces.push_back({spans[level], levels[level].data()});
    return pieces;
  };
  // All rounds are under way at once: each adds to what the one before it leaves.
  const int rounds = (lanes + world_size - 1) / world_size;
  const std::size_t stride = (count * sizeof(T) + 63) / 64 * 64;
  std::vector<Work> works;
  for (int t = 0; t < rounds; ++t) {
    const int lane = t * world_size + rank;
    for (std::size_t i = 0; i < count && lane < lanes; ++i) arena.at<T>(t * stride)[i] = T(lane_value(lane, i));
    ReduceScatterArgs args;
    args.window = arena.window;
    for (int r = 0; r < world_size; ++r)
      for (const Interval& interval : shard(shape, count, world_size, r)) args.owned.push_back({r, interval});
    args.dtype = dtype_of<T>();
    args.complete = t + 1 == rounds;
    std::vector<LaneSpan> spans;
    for (int l = t * world_size; l < std::min(lanes, (t + 1) * world_size); ++l) {
      args.pieces.push_back({l - t * world_size, {l, 1}, t * stride});
      spans.push_back({l, 1});
    }
    args.carry = places(carry);
    carry = result_spans(carry, spans, args.complete);
    args.results = places(carry);
    works.push_back(comm.reduce_scatter(args));
  }
  for (const Work& work : works) work.wait();
  check_sums("rounds with carry", mine, levels[0], expected);
}

template <class T>
void reduce_everything(Communicator& comm, Arena& arena) {
  const int world_size = comm.world().world_size;
  for (const std::size_t count : kSizes) {
    if (count > 20000 && (sizeof(T) == 2 || world_size > 5)) continue;  // the plain loop takes its time
    for (const int lanes : {8, 11}) {
      if (lanes < world_size || (count > 20000 && lanes == 11)) continue;
      const auto expected = expected_sums<T>(lanes, count);
      const int shape = static_cast<int>(count % 3);
      folded_lanes<T>(comm, arena, contiguous_lanes(lanes, world_size), lanes, count, shape, false, expected);
      folded_lanes<T>(comm, arena, contiguous_lanes(lanes, world_size), lanes, count, (shape + 1) % 3, true, expected);
      // Any assignment will do, also one in which a rank's lanes are scattered.
      folded_lanes<T>(comm, arena, strided_lanes(lanes, world_size), lanes, count, (shape + 2) % 3, false, expected);
      rounds_with_carry<T>(comm, arena, lanes, count, shape, expected);
    }
  }
}

class Collectives : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  void run(const Body& body) {
    const std::string transport = std::get<0>(GetParam());
    const int world_size = std::get<1>(GetParam());
    if (const std::string why = not_covered(transport); !why.empty()) GTEST_SKIP() << why;
    const auto outcomes = run_on(transport, world_size, [&](int rank, Communicator& comm) {
      require(comm.transport() == transport.substr(0, transport.find('/')), "the transport that was asked for");
      std::string text = body(rank, comm);
      return text;
    });
    for (int r = 0; r < world_size; ++r) {
      EXPECT_EQ(outcomes[r].text, "") << "rank " << r;
      EXPECT_EQ(outcomes[r].exit_code, 0) << "rank " << r;
      EXPECT_EQ(outcomes[r].signal, 0) << "rank " << r;
    }
  }
};

TEST_P(Collectives, ReduceScatterHasTheBitsOfAPlainLoopOverTheLaneTree) {
  run([](int, Communicator& comm) {
    Arena arena(comm, std::size_t{8} << 20);
    reduce_everything<float>(comm, arena);
    reduce_everything<bf16>(comm, arena);
    reduce_everything<f16>(comm, arena);
    return "";
  });
}

template <class T>
void gather_everything(Communicator& comm, Arena& arena, Arena& shards) {
  const int rank = comm.world().rank, world_size = comm.world().world_size;
  for (const std::size_t count : kSizes)
    for (int shape = 0; shape < 3; ++shape) {
      if (count > 20000 && shape != world_size % 3) continue;
      AllGatherArgs args;
      args.dtype = dtype_of<T>();
      std::vector<std::size_t> compact(world_size, 0);
      for (int r = 0; r < world_size; ++r)
        for (const Interval& interval : shard(shape, count, world_size, r)) args.owned.push_back({r, interval});
      std::sort(args.owned.begin(), args.owned.end(),
                [](const auto& a, const auto& b) { return a.interval.begin < b.interval.begin; });
      std::memset(arena.memory.data(), 0, count * sizeof(T) + 64);
      for (auto& owned : args.owned) {
        for (std::size_t i = owned.interval.begin; i < owned.interval.end; ++i) {
          if (owned.rank != rank) continue;
          arena.at<T>(64)[i] = T(lane_value(rank, i));
          shards.at<T>(0)[compact[rank] + i - owned.interval.begin] = T(lane_value(rank, i));
        }
        compact[owned.rank] += owned.interval.size();
      }
      const auto check = [&](const T* whole, const char* what) {
        for (const auto& owned : args.owned)
          for (std::size_t i = owned.interval.begin; i < owned.interval.end; ++i)
            if (!same_bits(whole[i], T(lane_value(owned.rank, i))))
              require(false, std::string(what) + " element " + std::to_string(i));
      };
      args.window = arena.window;
      args.offset = 64;
      comm.all_gather(args).wait();
      check(arena.at<T>(64), "in place");
      // The same from compact shards into memory of its own.
      std::vector<T> whole(count);
      std::vector<std::size_t> at(world_size, 0);
      for (auto& owned : args.owned) {
        owned.source_offset = at[owned.rank] * sizeof(T);
        at[owned.rank] += owned.interval.size();
      }
      args.window = shards.window;
      args.offset = 0;
      args.destination = whole.data();
      comm.all_gather(args).wait();
      check(whole.data(), "from shards");
    }
}

TEST_P(Collectives, AllGatherBringsEveryIntervalInPlaceAndFromCompactShards) {
  run([](int, Communicator& comm) {
    Arena arena(comm, std::size_t{2} << 20), shards(comm, std::size_t{2} << 20);
    gather_everything<float>(comm, arena, shards);
    gather_everything<bf16>(comm, arena, shards);
    return "";
  });
}

TEST_P(Collectives, BroadcastBringsTheRootsBytes) {
  run([](int rank, Communicator& comm) {
    for (const std::size_t bytes : {0u, 1u, 7u, 65536u, (1u << 20) + 1, 3u << 20})
      for (int root = 0; root < comm.world().world_size; root += 2) {
        std::vector<std::uint8_t> data(bytes, static_cast<std::uint8_t>(rank + 1));
        if (rank == root)
          for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::uint8_t>(i * 7 + root);
        comm.broadcast(std::as_writable_bytes(std::span(data)), root);
        for (std::size_t i = 0; i < bytes; ++i)
          if (data[i] != static_cast<std::uint8_t>(i * 7 + root)) require(false, "byte " + std::to_string(i));
      }
    return "";
  });
}

TEST_P(Collectives, AllToAllMovesEveryPartWhateverItsSize) {
  run([](int rank, Communicator& comm) {
    const int n = comm.world().world_size;
    // From rank a to rank b in round t; some are empty, some larger than what is staged at once.
    const auto size = [&](int t, int a, int b) -> std::size_t {
      return t == 0 ? 0 : t == 1 ? 1 + a + 2 * b : t == 2 ? (a == 0 ? (std::size_t{3} << 20) + b : 5) : 100'000 * a + b;
    };
    for (int t = 0; t < 4; ++t) {
      std::vector<std::vector<std::uint8_t>> out(n), in(n);
      std::vector<std::span<const std::byte>> send;
      std::vector<std::span<std::byte>> receive;
      for (int r = 0; r < n; ++r) {
        out[r].resize(size(t, rank, r));
        for (std::size_t i = 0; i < out[r].size(); ++i) out[r][i] = static_cast<std::uint8_t>(i * 3 + rank * 16 + r);
        in[r].resize(size(t, r, rank));
        send.push_back(std::as_bytes(std::span(out[r])));
        receive.push_back(std::as_writable_bytes(std::span(in[r])));
      }
      comm.all_to_all_v(send, receive);
      for (int r = 0; r < n; ++r)
        for (std::size_t i = 0; i < in[r].size(); ++i)
          if (in[r][i] != static_cast<std::uint8_t>(i * 3 + r * 16 + rank))
            require(false, "byte from rank " + std::to_string(r));
    }
    return "";
  });
}

TEST_P(Collectives, BlobsAndSumsOfAnySizeReachEveryRank) {
  run([](int rank, Communicator& comm) {
    const int n = comm.world().world_size;
    for (const std::size_t size : {0u, 5u, 4096u, 4097u, 1u << 20}) {
      // Only even ranks bring much.
      const auto blob_of = [&](int r) { return std::string(r % 2 == 0 ? size : 3, static_cast<char>('a' + r)); };
      const auto blobs = comm.all_gather_blobs(blob_of(rank));
      require(static_cast<int>(blobs.size()) == n, "a blob of every rank");
      for (int r = 0; r < n; ++r) require(blobs[r] == blob_of(r), "blob of rank " + std::to_string(r));
    }
    for (const std::size_t count : {0u, 1u, 512u, 513u, 200'000u}) {
      std::vector<double> data(count);
      for (std::size_t i = 0; i < count; ++i)
        data[i] = static_cast<int>(i % n) == rank ? 1.5 + static_cast<double>(i) : 0.0;
      comm.all_reduce_sum(data);
      for (std::size_t i = 0; i < count; ++i)
        if (data[i] != 1.5 + static_cast<double>(i)) require(false, "sum " + std::to_string(i));
    }
    for (int i = 0; i < 100; ++i) comm.barrier();
    return "";
  });
}

template <class T>
void classical_forms(Communicator& comm) {
  const int rank = comm.world().rank, n = comm.world().world_size;
  for (const std::size_t count : {0u, 1u, 7u, 50'001u}) {
    std::vector<T> input(count);
    for (std::size_t i = 0; i < count; ++i) input[i] = T(lane_value(rank, i));
    const std::vector<T> expected = expected_sums<T>(n, count);
    const Interval own = even_chunk(count, n, rank);
    std::vector<T> chunk(own.size()), whole(count);
    reduce_scatter<T>(comm, input, chunk);
    check_sums("reduce_scatter", {own}, chunk, expected);
    all_gather<T>(comm, chunk, whole);
    check_sums("all_gather", {{0, count}}, whole, expected);
    all_reduce<T>(comm, input);
    check_sums("all_reduce", {{0, count}}, input, expected);
  }
}

TEST_P(Collectives, ClassicalFormsOnSpansAddInLaneTreeOrder) {
  run([](int rank, Communicator& comm) {
    classical_forms<float>(comm);
    classical_forms<bf16>(comm);
    classical_forms<f16>(comm);
    const int n = comm.world().world_size;
    const Interval own = even_chunk(100, n, rank);
    std::vector<std::byte> bytes(own.size(), std::byte(rank)), all(100);
    all_gather<std::byte>(comm, bytes, all);
    for (int r = 0; r < n; ++r)
      for (std::size_t i = even_chunk(100, n, r).begin; i < even_chunk(100, n, r).end; ++i)
        require(all[i] == std::byte(r), "byte of rank " + std::to_string(r));
    std::vector<float> input(8), output(n == 1 ? 7 : 8);
    bool refused = false;
    try {
      reduce_scatter<float>(comm, input, output);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    require(refused, "a wrong size of output");
    return "";
  });
}

TEST_P(Collectives, ManyCallsUnderWayAtOnceStayInOrder) {
  run([](int rank, Communicator& comm) {
    const int n = comm.world().world_size;
    constexpr int kCalls = 600;  // more than announcements fit into the ring
    constexpr std::size_t kCount = 96;
    Arena arena(comm, kCalls * kCount * sizeof(float));
    std::vector<std::vector<float>> sums(kCalls, std::vector<float>(kCount));
    std::vector<Work> works;
    for (int c = 0; c < kCalls; ++c) {
      float* const mine = arena.at<float>(c * kCount * sizeof(float));
      for (std::size_t i = 0; i < kCount; ++i) mine[i] = static_cast<float>(rank + c);
      ReduceScatterArgs args;
      args.window = arena.window;
      for (int r = 0; r < n; ++r) args.pieces.push_back({r, {r, 1}, c * kCount * sizeof(float)});
      for (int r = 0; r < n; ++r) args.owned.push_back({r, {0, kCount}});
      args.complete = true;
      args.results = {{{0, n}, sums[c].data()}};
      works.push_back(comm.reduce_scatter(args));
      if (c % 50 == 0) {
        std::vector<double> small = {rank == 0 ? static_cast<double>(c) : 0.0};
        comm.all_reduce_sum(small);  // a blocking call between asynchronous ones
        require(small[0] == c, "small sum " + std::to_string(c));
      }
    }
    for (int c = 0; c < kCalls; ++c) {
      works[c].wait();
      require(works[c].done() && works[c].finished_at() > 0, "done after wait");
      for (const float sum : sums[c]) require(sum == static_cast<float>(n * (n - 1) / 2 + n * c), "sum of call");
    }
    require(comm.stats().calls >= kCalls, "calls are counted");
    // Every rank wants every sum; where pieces are added on the way, one of them is all that comes.
    if (n > 1) require(comm.stats().bytes_read_from_peers >= kCalls * kCount * sizeof(float), "bytes counted");
    return "";
  });
}

TEST_P(Collectives, MemoryMayBeReusedOnceTheWorkIsDone) {
  run([](int rank, Communicator& comm) {
    const int n = comm.world().world_size;
    constexpr std::size_t kCount = 50'000;
    Arena arena(comm, kCount * sizeof(float));
    std::vector<float> sum(kCount);
    for (int turn = 0; turn < 20; ++turn) {
      for (std::size_t i = 0; i < kCount; ++i) arena.at<float>(0)[i] = static_cast<float>(turn + rank);
      ReduceScatterArgs args;
      args.window = arena.window;
      for (int r = 0; r < n; ++r) args.pieces.push_back({r, {r, 1}, 0});
      for (int r = 0; r < n; ++r) args.owned.push_back({r, {0, kCount}});
      args.complete = true;
      args.results = {{{0, n}, sum.data()}};
      if (rank == turn % n) usleep(500);
      comm.reduce_scatter(args).wait();
      for (const float s : sum)
        if (s != static_cast<float>(n * turn + n * (n - 1) / 2)) require(false, "sum of turn " + std::to_string(turn));
    }
    return "";
  });
}

std::string name_of_case(const testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  std::string name = std::get<0>(info.param) + std::to_string(std::get<1>(info.param));
  for (char& c : name)
    if (c == '/' || c == '+') c = '_';
  return name;
}
/// A sample of worlds, or all of them.
std::vector<int> worlds_of_routes() {
  if (std::getenv("BELLOWS_TEST_FULL")) return {1, 2, 3, 4, 5, 6, 7, 8, 9};
  return {1, 2, 3, 4, 8};
}
INSTANTIATE_TEST_SUITE_P(Transports, Collectives,
                         testing::Combine(testing::ValuesIn(every_transport()), testing::Range(1, 10)), name_of_case);
INSTANTIATE_TEST_SUITE_P(Routes, Collectives, testing::ValuesIn(routes_in_worlds(every_route(), worlds_of_routes())),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(UnderMpi, Collectives,
                         testing::ValuesIn(routes_in_worlds(every_mpi_route(), {mpi_world_size()})), name_of_case);

}  // namespace
}  // namespace bellows
