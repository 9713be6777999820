#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "bellows/comm/communicator.h"
#include "group.h"

namespace bellows {

/// One window as a rank sees it: where the memory of each rank stands.
struct MappedWindow {
  std::vector<std::byte*> base;
  std::vector<std::size_t> bytes;
  std::byte* own = nullptr;
};

/// Check the arguments (std::invalid_argument), and make the call that carries them out. `window` outlives the call.
std::shared_ptr<Call> make_reduce_scatter(Group& group, const MappedWindow& window, ReduceScatterArgs args);
std::shared_ptr<Call> make_all_reduce(Group& group, const MappedWindow& window, const MappedWindow& destination,
                                      AllReduceArgs args);
std::shared_ptr<Call> make_all_gather(Group& group, const MappedWindow& window, AllGatherArgs args);

}  // namespace bellows
