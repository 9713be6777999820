#include "routed/cost_model.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "bellows/base/error.h"
#include "bellows/comm/communicator.h"
#include "ranks.h"
#include "routed/selection.h"

namespace bellows {
namespace {

constexpr std::size_t KiB = 1024, MiB = KiB * KiB;

// Round figures: 1 us a message, 10 GB/s inside a host; 20 us and 1 GB/s between hosts.
CollectiveCosts round_figures() {
  CollectiveCosts costs;
  costs.near = {1e-6, 0, 1e-10, 1e-10};
  costs.far = {20e-6, 0, 1e-9, 1e-9};
  costs.add_s = 5e-11;
  costs.copy_s = 5e-11;
  costs.wake_s = 0;
  return costs;
}
Places hosts_of(std::vector<int> host) { return Places{std::move(host)}; }
double seconds_of(CostedCall call, Algorithm algorithm, const Places& places, std::size_t bytes,
                  const CollectiveCosts& costs = round_figures(), double crowd = 1) {
  return predict(call, Routes(algorithm, places), places, bytes, costs, crowd);
}

TEST(CostModel, TwoRanksPayForOneMessageAndItsBytes) {
  const Places two = Places::one_host(2);
  EXPECT_NEAR(seconds_of(CostedCall::kAllGather, Algorithm::kDirect, two, 8 * KiB), 1e-6 + 4 * KiB * 1e-10, 1e-9);
  // The reduction adds its own half and the other's.
  EXPECT_NEAR(seconds_of(CostedCall::kReduceScatter, Algorithm::kDirect, two, 8 * KiB),
              1e-6 + 4 * KiB * 1e-10 + 2 * 4 * KiB * 5e-11, 1e-9);
}

TEST(CostModel, NothingIsFreeAndNobodyAloneCostsOnlyTheAdding) {
  EXPECT_EQ(seconds_of(CostedCall::kAllReduce, Algorithm::kDirect, Places::one_host(3), 0), 0);
  EXPECT_EQ(seconds_of(CostedCall::kAllGather, Algorithm::kRing, Places::one_host(1), MiB), 0);
}

TEST(CostModel, AnAllReduceIsBothHalves) {
  const Places places = hosts_of({0, 0, 1, 1});
  for (const Algorithm algorithm : all_algorithms())
    EXPECT_DOUBLE_EQ(seconds_of(CostedCall::kAllReduce, algorithm, places, MiB),
                     seconds_of(CostedCall::kReduceScatter, algorithm, places, MiB) +
                         seconds_of(CostedCall::kAllGather, algorithm, places, MiB));
}

TEST(CostModel, MoreBytesNeverTakeLess) {
  for (const Algorithm algorithm : all_algorithms())
    for (const int n : {2, 4, 8}) {
      double before = 0;
      for (std::size_t bytes = 4 * KiB; bytes <= 256 * MiB; bytes *= 2) {
        const double now = seconds_of(CostedCall::kAllReduce, algorithm, Places::one_host(n), bytes);
        EXPECT_GT(now, before) << name_of(algorithm) << ' ' << n << ' ' << bytes;
        before = now;
      }
    }
}

// A ring's neighbours are no neighbours in the lane tree: several pieces travel instead of one, up to log2 of the ranks
// on either side of where the ring wraps.
TEST(CostModel, AReproducibleRingPaysForThePiecesThatItCannotAddYet) {
  CollectiveCosts bytes_only;
  bytes_only.near = {0, 0, 1e-10, 1e-10};
  const Places eight = Places::one_host(8);
  const double gather = seconds_of(CostedCall::kAllGather, Algorithm::kRing, eight, 8 * MiB, bytes_only);
  const double reduce = seconds_of(CostedCall::kReduceScatter, Algorithm::kRing, eight, 8 * MiB, bytes_only);
  EXPECT_GT(reduce, 1.3 * gather);
  EXPECT_LE(reduce, 6 * gather);
  // Recursive halving meets the lane tree's neighbours: no byte more.
  EXPECT_NEAR(seconds_of(CostedCall::kReduceScatter, Algorithm::kHalving, eight, 8 * MiB, bytes_only),
              seconds_of(CostedCall::kAllGather, Algorithm::kHalving, eight, 8 * MiB, bytes_only), 1e-6);
}

TEST(CostModel, RanksWithoutACoreOfTheirOwnTakeLonger) {
  CollectiveCosts costs = round_figures();
  costs.wake_s = 5e-6;
  for (const Algorithm algorithm : all_algorithms())
    EXPECT_GT(seconds_of(CostedCall::kAllReduce, algorithm, Places::one_host(8), MiB, costs, 4),
              3 * seconds_of(CostedCall::kAllReduce, algorithm, Places::one_host(8), MiB, costs, 1));
}

TEST(CostModel, ManySmallMessagesMakeHalvingWin) {
  for (const CostedCall call : {CostedCall::kReduceScatter, CostedCall::kAllGather, CostedCall::kAllReduce})
    EXPECT_EQ(cheapest(call, Places::one_host(16), 4 * KiB, round_figures(), 1), Algorithm::kHalving);
}

TEST(CostModel, OnOneHostLargeVectorsGoTheDirectWay) {
  for (const int n : {2, 3, 4, 8})
    EXPECT_EQ(cheapest(CostedCall::kAllReduce, Places::one_host(n), 64 * MiB, round_figures(), 1), Algorithm::kDirect)
        << n;
}

TEST(CostModel, ASlowLinkBetweenHostsMakesHierarchicalWin) {
  for (const std::size_t bytes : {1 * MiB, 16 * MiB, 64 * MiB}) {
    EXPECT_EQ(cheapest(CostedCall::kAllReduce, hosts_of({0, 0, 0, 1, 1, 1}), bytes, round_figures(), 1),
              Algorithm::kHierarchical);
    EXPECT_EQ(cheapest(CostedCall::kReduceScatter, hosts_of({0, 0, 0, 0, 0, 1, 1, 1, 1, 1}), bytes, round_figures(), 1),
              Algorithm::kHierarchical);
  }
}

TEST(CostModel, OneRankPerHostNeedsNoHierarchy) {
  EXPECT_NE(cheapest(CostedCall::kAllReduce, hosts_of({0, 1, 2}), 16 * MiB, round_figures(), 1),
            Algorithm::kHierarchical);
}

// Three messages one after another pay for the way three times, three at once only once.
TEST(CostModel, WhatAMessageSpendsOnItsWayMakesFewStepsWin) {
  CollectiveCosts costs = round_figures();
  costs.near.message_s = 1e-7;
  costs.near.delay_s = 20e-6;
  const Places four = Places::one_host(4);
  const double direct = seconds_of(CostedCall::kAllGather, Algorithm::kDirect, four, 4 * KiB, costs);
  EXPECT_NEAR(direct, 20e-6, 2e-6);
  EXPECT_NEAR(seconds_of(CostedCall::kAllGather, Algorithm::kRing, four, 4 * KiB, costs), 60e-6, 3e-6);
  EXPECT_EQ(cheapest(CostedCall::kAllGather, Places::one_host(16), 4 * KiB, costs, 1), Algorithm::kDirect);
}

TEST(CostModel, BytesThatCachesDoNotHoldMayCostMore) {
  CollectiveCosts costs = round_figures();
  costs.near.message_s = 0;
  const Places two = Places::one_host(2);
  const auto per_mib = [&](std::size_t mib) {
    return seconds_of(CostedCall::kAllGather, Algorithm::kDirect, two, mib * MiB, costs) / static_cast<double>(mib);
  };
  EXPECT_NEAR(per_mib(64) / per_mib(1), 1, 1e-9);
  costs.beyond_cache = 4;
  EXPECT_NEAR(per_mib(4) / per_mib(1), 2, 1e-9);
  EXPECT_NEAR(per_mib(16) / per_mib(1), 4, 1e-9);
  EXPECT_NEAR(per_mib(64) / per_mib(1), 4, 1e-9);
}

TEST(CostModel, WhatWasMeasuredCorrectsCallsLikeIt) {
  const Places four = Places::one_host(4);
  CollectiveCosts costs = round_figures();
  costs.errors = {{CostedCall::kAllGather, "ring", 4, 64 * KiB, 2.0},
                  {CostedCall::kAllGather, "ring", 4, 1 * MiB, 0.5},
                  {CostedCall::kAllGather, "ring", 16, 1 * MiB, 7.0}};
  const auto factor = [&](CostedCall call, Algorithm algorithm, const Places& places, std::size_t bytes) {
    return seconds_of(call, algorithm, places, bytes, costs) / seconds_of(call, algorithm, places, bytes);
  };
  const auto ring = [&](std::size_t bytes) { return factor(CostedCall::kAllGather, Algorithm::kRing, four, bytes); };
  EXPECT_NEAR(ring(64 * KiB), 2, 1e-9);
  EXPECT_NEAR(ring(256 * KiB), 1, 1e-9);  // half way between two and a half
  EXPECT_NEAR(ring(1 * MiB), 0.5, 1e-9);
  EXPECT_NEAR(ring(4 * KiB), 2, 1e-9);
  EXPECT_NEAR(ring(64 * MiB), 0.5, 1e-9);
  EXPECT_NEAR(factor(CostedCall::kAllGather, Algorithm::kRing, Places::one_host(12), MiB), 7, 1e-9);
  EXPECT_NEAR(factor(CostedCall::kReduceScatter, Algorithm::kRing, four, MiB), 1, 1e-9);
  EXPECT_NEAR(factor(CostedCall::kAllGather, Algorithm::kDirect, four, MiB), 1, 1e-9);
  EXPECT_NEAR(factor(CostedCall::kAllGather, Algorithm::kRing, hosts_of({0, 0, 1, 1}), MiB), 1, 1e-9);
}

TEST(CostModel, AlgorithmsOfTheSameTreesAreOne) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(fitting_algorithms({{0, 0}}, true), Names{"direct"});
  EXPECT_EQ(fitting_algorithms({{0, 0, 0, 0}}, true), (Names{"direct", "ring", "halving"}));
  EXPECT_EQ(fitting_algorithms({{0, 0, 0}}, true), (Names{"direct", "ring"}));
  EXPECT_EQ(fitting_algorithms({{0, 0, 0, 1, 1, 1}}, true), (Names{"direct", "ring", "hierarchical"}));
  EXPECT_EQ(fitting_algorithms({{0, 0, 1, 1}}, true), (Names{"direct", "ring", "halving"}));  // hosts pair like lanes
  EXPECT_EQ(fitting_algorithms({{0, 0, 0}}), (Names{"direct", "ring", "hierarchical"}));
}

TEST(CostModel, HalvingIsNotTakenWhereItCannotServe) {
  EXPECT_NE(cheapest(CostedCall::kAllReduce, Places::one_host(12), 4 * KiB, round_figures(), 1), Algorithm::kHalving);
}

TEST(CostModel, BeyondTheModelledWorldsHostsDecide) {
  Places places = Places::one_host(2 * kModelledRanks);
  EXPECT_EQ(cheapest(CostedCall::kAllReduce, places, MiB, round_figures(), 1), Algorithm::kDirect);
  for (int r = 0; r < places.world_size(); ++r) places.host[r] = r / 8;
  EXPECT_EQ(cheapest(CostedCall::kAllReduce, places, MiB, round_figures(), 1), Algorithm::kHierarchical);
}

TEST(Selection, TakesWhatTheModelFindsCheapestUnlessForced) {
  const Places places = hosts_of({0, 0, 0, 1, 1, 1});
  EXPECT_EQ(Selection("auto", round_figures(), 1).choose(CostedCall::kAllGather, 16 * MiB, places),
            Algorithm::kHierarchical);
  EXPECT_EQ(Selection("ring", round_figures(), 1).choose(CostedCall::kAllGather, 16 * MiB, places), Algorithm::kRing);
  EXPECT_THROW(Selection("halving", round_figures(), 1).choose(CostedCall::kAllGather, 1, places), UserError);
}

TEST(Selection, SizesOfOneClassAreServedAlike) {
  const Selection selection("auto", round_figures(), 1);
  const Places places = Places::one_host(16);
  for (std::size_t bytes = 4097; bytes <= 8192; bytes += 819)
    EXPECT_EQ(selection.choose(CostedCall::kAllReduce, bytes, places),
              selection.choose(CostedCall::kAllReduce, 8192, places));
}

class CalibrationFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("bellows-costs-" + std::to_string(getpid()));
    path_ = (folder_ / "deeper" / "collectives.json").string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
  std::string path_;
};

TEST_F(CalibrationFile, IsFoundAgainPerTransport) {
  EXPECT_FALSE(load_costs(path_, "ucx"));
  CollectiveCosts other = round_figures();
  other.far.message_s = 1.0 / 3;
  store_costs(path_, "ucx", round_figures());
  store_costs(path_, "shm+ucx", other);
  EXPECT_EQ(load_costs(path_, "ucx"), round_figures());
  EXPECT_EQ(load_costs(path_, "shm+ucx"), other);
  EXPECT_FALSE(load_costs(path_, "mpi"));
}

TEST_F(CalibrationFile, ThatIsNoneIsNamed) {
  store_costs(path_, "ucx", round_figures());
  for (const char* text : {"{", "[]", R"({"hosts": 3})"}) {
    std::ofstream(path_) << text;
    try {
      load_costs(path_, "ucx");
      FAIL() << text;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(path_), std::string::npos) << error.what();
    }
  }
}

TEST_F(CalibrationFile, ThatRankZeroCannotReadIsToldToEveryRankAtOnce) {
  store_costs(path_, "inproc", round_figures());
  std::ofstream(path_) << "{";
  InprocBootstrap bootstrap;
  CommOptions options;
  options.transport = "ucx";
  options.calibration = path_;
  options.connect_timeout_s = 20;
  if (const std::string why = not_covered("ucx"); !why.empty()) GTEST_SKIP() << why;
  std::vector<std::string> said(3);
  std::vector<std::thread> ranks;
  for (int r = 0; r < 3; ++r)
    ranks.emplace_back([&, r] {
      try {
        connect(World{r, 3, r, 3, 1}, bootstrap, options);
      } catch (const std::exception& error) {
        said[r] = error.what();
      }
    });
  for (auto& rank : ranks) rank.join();
  for (const std::string& text : said) EXPECT_NE(text.find(path_), std::string::npos) << text;
}

TEST(CollectiveCosts, TravelWithoutLoss) {
  CollectiveCosts costs = built_in_costs("ucx");
  costs.add_s = 1.0 / 3e11;
  costs.errors = {{CostedCall::kReduceScatter, "halving", 8, 12345, 1.0 / 3}};
  EXPECT_EQ(decode_costs(encode(costs)), costs);
  EXPECT_EQ(encode(costs).find('\n'), std::string::npos);
  EXPECT_THROW(decode_costs("1 2 three"), UserError);
  EXPECT_THROW(decode_costs(encode(costs) + " 4"), UserError);
  EXPECT_THROW(decode_costs("{}"), UserError);
}

}  // namespace
}  // namespace bellows
