#pragma once
#include <optional>

#include "bellows/base/dtype.h"
#include "bellows/comm/communicator.h"

namespace bellows {

/// Peak FLOP/s of this rank in `dtype`: its fair share of the host's cores. Measured once per process, or as given by the
/// agent (BELLOWS_PEAK_F32, BELLOWS_PEAK_BF16), which measures once per host before ranks disturb each other.
std::optional<double> rank_peak(const World& world, DType dtype, int threads);

/// Collective: the peak of the whole world; nothing if any rank's is unknown.
std::optional<double> world_peak(Communicator& comm, std::optional<double> mine);

}  // namespace bellows
