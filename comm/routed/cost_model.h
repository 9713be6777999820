#pragma once
#include <cstddef>

#include "bellows/comm/costs.h"
#include "routed/routes.h"

namespace bellows {

/// Seconds until the slowest rank is through with a call on a vector of `bytes`. The messages are those that the plans
/// send along `routes` (one lane per rank, even shares), played through with each rank, and each host's way in and out,
/// busy with one thing at a time; further segments follow as fast as the busiest of them allows. Among ranks of one
/// host, times how far that was off where it was measured (`costs.errors`). Pure.
double predict(CostedCall call, const Routes& routes, const Places& places, std::size_t bytes,
               const CollectiveCosts& costs, double ranks_per_core);

/// The algorithm with the least predicted time, the first of several in the order of all_algorithms(). Beyond
/// kModelledRanks ranks, what crosses between hosts decides: hierarchical if a host has several ranks, else direct.
Algorithm cheapest(CostedCall call, const Places& places, std::size_t bytes, const CollectiveCosts& costs,
                   double ranks_per_core);
constexpr int kModelledRanks = 128;

}  // namespace bellows
