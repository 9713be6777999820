#include "routed/routes.h"

#include <gtest/gtest.h>

#include "bellows/comm/communicator.h"
#include "ranks.h"

namespace bellows {
namespace {

Places places_of(int kind, int world_size) {
  Places places = Places::one_host(world_size);
  for (int r = 0; r < world_size; ++r)
    places.host[r] = kind == 0 ? 0 : kind == 1 ? r / 2 : kind == 2 ? r % 3 : (r < 1 ? 0 : 1);
  return places;
}

TEST(Routes, LeadFromEveryRankToEveryOwnerWithoutCircles) {
  for (const Algorithm algorithm : all_algorithms())
    for (int n = 1; n <= 9; ++n)
      for (int kind = 0; kind < 4; ++kind) {
        const Places places = places_of(kind, n);
        if (!unfit(algorithm, places).empty()) continue;
        const Routes routes(algorithm, places);
        for (int owner = 0; owner < n; ++owner) {
          int reached = 0;
          for (int rank = 0; rank < n; ++rank) {
            int at = rank, hops = 0;
            while (at != owner && hops <= n) at = routes.next(owner, at), ++hops;
            ASSERT_EQ(at, owner) << name_of(algorithm) << " from " << rank << " of " << n;
            ASSERT_EQ(routes.depth(owner, rank), hops);
            for (const int child : routes.children(owner, rank)) {
              ASSERT_EQ(routes.next(owner, child), rank);
              ASSERT_LT(routes.height(owner, child), routes.height(owner, rank));
              ++reached;
            }
          }
          ASSERT_EQ(reached, n - 1) << "every rank but the owner is somebody's child";
        }
      }
}

TEST(Routes, HalvingMeetsNeighboursFirst) {
  const Routes routes(Algorithm::kHalving, Places::one_host(8));
  EXPECT_EQ(routes.next(0, 7), 6);
  EXPECT_EQ(routes.next(0, 6), 4);
  EXPECT_EQ(routes.next(0, 4), 0);
  EXPECT_EQ(routes.depth(5, 2), 3);
}

TEST(Routes, HierarchicalLeavesEachHostOncePerOwner) {
  const Places places{{0, 0, 0, 1, 1, 2, 2, 2, 2}};
  const Routes routes(Algorithm::kHierarchical, places);
  for (int owner = 0; owner < 9; ++owner) {
    int crossings[3] = {};
    for (int rank = 0; rank < 9; ++rank)
      if (places.host[routes.next(owner, rank)] != places.host[rank]) ++crossings[places.host[rank]];
    for (int host = 0; host < 3; ++host) EXPECT_EQ(crossings[host], host == places.host[owner] ? 0 : 1);
  }
}

TEST(Routes, AnUnknownAlgorithmIsNamedWithThoseThatExist) {
  try {
    algorithm_by_name("tree");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "unknown algorithm 'tree'; known: auto, direct, ring, halving, hierarchical");
  }
}

// What compute waits for does not queue behind gradients.
class UrgentCalls : public testing::TestWithParam<std::string> {};

TEST_P(UrgentCalls, OvertakeWhatWasQueuedBeforeThem) {
  if (const std::string why = not_covered(GetParam()); !why.empty()) GTEST_SKIP() << why;
  const auto outcomes = run_on(GetParam(), 2, [](int rank, Communicator& comm) -> std::string {
    constexpr std::size_t kBucket = std::size_t{4} << 20;  // elements
    constexpr int kBuckets = 12;
    SharedMemory memory(kBucket * sizeof(float)), parameters(std::size_t{1} << 20);
    const Window window = comm.expose(memory, 0, memory.size()), small = comm.expose(parameters, 0, parameters.size());
    std::vector<float> sums(kBucket);
    std::vector<Work> buckets;
    for (int b = 0; b < kBuckets; ++b) {
      ReduceScatterArgs args;
      args.window = window;
      for (int r = 0; r < 2; ++r) {
        args.pieces.push_back({r, {r, 1}, 0});
        args.owned.push_back({r, even_chunk(kBucket, 2, r)});
      }
      args.complete = true;
      args.results = {{{0, 2}, sums.data()}};
      buckets.push_back(comm.reduce_scatter(args));
    }
    AllGatherArgs gather;
    gather.window = small;
    for (int r = 0; r < 2; ++r) gather.owned.push_back({r, even_chunk(parameters.size() / sizeof(float), 2, r)});
    parameters.as<float>()[even_chunk(parameters.size() / sizeof(float), 2, rank).begin] = static_cast<float>(rank + 1);
    gather.priority = 1;
    comm.all_gather(gather).wait();
    int done = 0;
    for (const Work& bucket : buckets) done += bucket.done() ? 1 : 0;
    require(parameters.as<float>()[0] == 1, "gathered");
    for (const Work& bucket : buckets) bucket.wait();
    require(done < kBuckets / 2, std::to_string(done) + " buckets were done before the urgent gather");
    return "";
  });
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.text, "");
}
INSTANTIATE_TEST_SUITE_P(Routes, UrgentCalls, testing::Values("inproc/ring", "shm/halving", "ucx"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (c == '/') c = '_';
                           return name;
                         });

}  // namespace
}  // namespace bellows
