#include "bellows/optimizer/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "bellows/base/error.h"

namespace bellows {
namespace {

using Kind = Schedule::Kind;

Schedule make(Kind kind) {
  return {.kind = kind, .peak = 0.4, .floor = 0.1, .warmup_steps = 4, .total_steps = 24, .decay_steps = 10};
}

TEST(Schedule, WarmsUpLinearlyToThePeak) {
  for (const Kind kind : {Kind::kConstant, Kind::kCosine, Kind::kWarmupStableDecay}) {
    const Schedule s = make(kind);
    EXPECT_FLOAT_EQ(s.at(0), 0.1f);
    EXPECT_FLOAT_EQ(s.at(1), 0.2f);
    EXPECT_FLOAT_EQ(s.at(2), 0.3f);
    EXPECT_FLOAT_EQ(s.at(3), 0.4f);
    EXPECT_FLOAT_EQ(s.at(4), 0.4f);
  }
}

TEST(Schedule, CosineFollowsItsTable) {
  const Schedule s = make(Kind::kCosine);
  EXPECT_FLOAT_EQ(s.at(14), 0.04f + 0.36f * 0.5f);                                          // half way
  EXPECT_FLOAT_EQ(s.at(9), static_cast<float>(0.04 + 0.36 * 0.5 * (1 + std::sqrt(0.5))));   // a quarter
  EXPECT_FLOAT_EQ(s.at(19), static_cast<float>(0.04 + 0.36 * 0.5 * (1 - std::sqrt(0.5))));  // three quarters
}

TEST(Schedule, WarmupStableDecayHoldsThePeakThenFallsLinearly) {
  const Schedule s = make(Kind::kWarmupStableDecay);
  for (int step = 4; step <= 14; ++step) EXPECT_FLOAT_EQ(s.at(step), 0.4f) << step;
  EXPECT_FLOAT_EQ(s.at(19), 0.22f);
  EXPECT_FLOAT_EQ(s.at(23), 0.04f + 0.36f * 0.1f);
}

TEST(Schedule, StaysAtTheFloorBeyondTheEnd) {
  for (const Kind kind : {Kind::kCosine, Kind::kWarmupStableDecay})
    for (const std::int64_t step : {24L, 25L, 1000L, 1L << 40}) EXPECT_FLOAT_EQ(make(kind).at(step), 0.04f);
  EXPECT_FLOAT_EQ(make(Kind::kConstant).at(1L << 40), 0.4f);
}

TEST(Schedule, NeverRisesAfterTheWarmUpAndNeverJumps) {
  for (const Kind kind : {Kind::kConstant, Kind::kCosine, Kind::kWarmupStableDecay}) {
    Schedule s = make(kind);
    s.warmup_steps = 100;
    s.total_steps = 1000;
    s.decay_steps = 300;
    for (int step = 1; step < 1100; ++step) {
      const float before = s.at(step - 1), now = s.at(step);
      EXPECT_EQ(now > before, step < 100) << step;
      EXPECT_LT(std::abs(now - before), 0.0045f) << step;
    }
  }
}

TEST(Schedule, WorksAtItsEdges) {
  Schedule s{.kind = Kind::kCosine, .peak = 1.0, .total_steps = 1};
  EXPECT_EQ(s.at(0), 1.0f);
  EXPECT_EQ(s.at(1), 0.0f);
  s.warmup_steps = 1;
  EXPECT_EQ(s.at(0), 1.0f);
  EXPECT_EQ(s.at(1), 0.0f);
  EXPECT_EQ(Schedule{}.at(7), 1e-3f);
}

TEST(Schedule, RefusesWhatMakesNoScheduleAndNamesTheValue) {
  const auto message = [](Schedule s) -> std::string {
    try {
      s.check();
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  Schedule good = make(Kind::kWarmupStableDecay);
  EXPECT_EQ(message(good), "");
  Schedule s = good;
  s.warmup_steps = 30;
  EXPECT_NE(message(s).find("30"), std::string::npos);
  s = good;
  s.decay_steps = 21;
  EXPECT_NE(message(s).find("21"), std::string::npos);
  s = good;
  s.floor = 1.5;
  EXPECT_NE(message(s).find("1.5"), std::string::npos);
  s = good;
  s.peak = std::nan("");
  EXPECT_NE(message(s).find("nan"), std::string::npos);
  s = good;
  s.total_steps = 0;
  EXPECT_NE(message(s).find("total steps"), std::string::npos);
}

TEST(Schedule, FingerprintChangesWithEveryNumber) {
  const Schedule s = make(Kind::kCosine);
  Schedule t = s;
  EXPECT_EQ(s.fingerprint(), t.fingerprint());
  t.peak = std::nextafter(t.peak, 1.0);
  EXPECT_NE(s.fingerprint(), t.fingerprint());
  t = s;
  t.warmup_steps = 5;
  EXPECT_NE(s.fingerprint(), t.fingerprint());
  t = s;
  t.kind = Kind::kConstant;
  EXPECT_NE(s.fingerprint(), t.fingerprint());
}

}  // namespace
}  // namespace bellows
