// Whatever happens in whatever order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "elastic/coordinator_fixture.h"

namespace bellows {
namespace {

/// Any order of deaths, joins, scales and silence: memberships never disagree, generations only grow, and a job whose
/// ranks are fed always comes back to its wished size.
TEST(CoordinatorProperty, RandomHistoriesKeepTheInvariants) {
  for (unsigned seed = 0; seed < 80; ++seed) {
    std::uint64_t state = seed * 7919 + 1;
    auto random = [&state](int n) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      return static_cast<int>((state >> 33) % static_cast<std::uint64_t>(n));
    };
    ManualClock clock;
    CoordinatorCore core(job(3, 1, 6, /*budget=*/1000), clock.now(), 0);
    std::map<std::string, std::uint64_t> alive;
    std::set<std::string> started, silent;
    std::map<std::uint64_t, std::vector<MemberInfo>> published;
    std::uint64_t last = 0;
    bool calm = false;
    for (int round = 0; round < 600; ++round) {
      calm = round > 400;  // then nothing more goes wrong, and everything must settle
      clock.advance(0.1);
      core.on_agent({"a", "h", 8, {}}, clock.now());
      const AgentOrders orders = core.orders_for("a");
      for (const std::string& id : orders.start) {
        if (!started.insert(id).second) continue;
        if (!calm && last > 0 && random(6) == 0) {
          core.on_exit({id, 1, 0, ""}, clock.now());
        } else {
          core.on_join(hello(id, "h", "f", 8), clock.now());
          alive[id] = 0;
        }
      }
      for (const std::string& id : orders.kill) {
        alive.erase(id);
        core.on_exit({id, 0, 9, ""}, clock.now());
      }
      std::vector<std::string> gone;
      for (auto& [id, generation] : alive) {
        if (silent.contains(id)) continue;
        if (!calm && random(80) == 0) {
          silent.insert(id);
          continue;
        }
        if (!calm && random(60) == 0) {
          core.on_exit({id, 0, 9, ""}, clock.now());
          gone.push_back(id);
          continue;
        }
        if (!calm && generation > 0 && random(100) == 0) core.on_failure(id, generation, {random(6)}, "x", clock.now());
        const Signals signals = core.signals_for(id);
        if (signals.over || signals.fenced) {
          core.on_exit({id, 0, 0, ""}, clock.now());
          gone.push_back(id);
          continue;
        }
        if (generation == 0 || signals.newest_generation > generation || signals.dead_generation == generation) {
          if (const auto m = core.on_await(id, generation, clock.now())) {
            ASSERT_GT(m->generation, generation);
            const auto [it, fresh] = published.emplace(m->generation, m->members);
            ASSERT_EQ(it->second, m->members) << "two memberships of one generation";
            generation = m->generation;
            if (!m->world_of(id)) {
              core.on_leave(id, false, clock.now());
              core.on_exit({id, 0, 0, ""}, clock.now());
              gone.push_back(id);
              continue;
            }
          }
        }
        HeartbeatMessage beat{id, {}, {}, {}};
        if (generation > 0 && random(3) > 0) {
          beat.step.emplace();
          beat.step->generation = generation;
        }
        core.on_heartbeat(beat, clock.now());
      }
      for (const std::string& id : gone) alive.erase(id);
      if (!calm && random(40) == 0) core.on_scale(1 + random(6), clock.now());
      if (round == 401) core.on_scale(4, clock.now());
      core.tick(clock.now());
      ASSERT_GE(core.membership().generation, last);
      last = core.membership().generation;
      ASSERT_FALSE(core.outcome()) << core.outcome()->text;
    }
    EXPECT_EQ(core.membership().world_size(), 4) << "seed " << seed;
    EXPECT_TRUE(core.status(clock.now()).settled) << "seed " << seed;
  }
}

}  // namespace
}  // namespace bellows
