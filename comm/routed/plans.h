#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/communicator.h"
#include "routed/exchange.h"
#include "routed/routes.h"

namespace bellows {

/// What a rank knows of a window: its own memory, and how much each rank has exposed.
struct RoutedWindow {
  std::byte* own = nullptr;
  std::vector<std::size_t> bytes;
};

/// Bytes of one owner that travel as one message, so that adding up one segment overlaps the transfer of the next. A
/// function of what all ranks know.
std::size_t segment_bytes(std::size_t largest_share, int world_size);

// The exchanges of one rank. Arguments are checked (std::invalid_argument); all ranks must pass the same routes and the
// same common arguments. Nothing is moved yet.
std::shared_ptr<Exchange> plan_reduce_scatter(const Routes& routes, int rank, const RoutedWindow& window,
                                              ReduceScatterArgs args);
std::shared_ptr<Exchange> plan_all_gather(const Routes& routes, int rank, const RoutedWindow& window,
                                          AllGatherArgs args);

/// Every rank brings `mine` and gets everybody's; all of one size. `all` (world_size of them) outlives the exchange.
std::shared_ptr<Exchange> plan_swap(int rank, int world_size, std::span<const std::byte> mine,
                                    const std::vector<std::span<std::byte>>& all, const char* what);
/// send[r] goes to rank r, receive[r] comes from rank r; sizes agree (see exchange of sizes in the communicator).
std::shared_ptr<Exchange> plan_all_to_all(int rank, const std::vector<std::span<const std::byte>>& send,
                                          const std::vector<std::span<std::byte>>& receive, const char* what);
/// A binomial tree from `root`.
std::shared_ptr<Exchange> plan_broadcast(int rank, int world_size, std::span<std::byte> data, int root,
                                         const char* what);
/// Dissemination: after round k every rank has heard of 2^(k+1) ranks.
std::shared_ptr<Exchange> plan_barrier(int rank, int world_size, const char* what);

}  // namespace bellows
