#pragma once
#include <vector>

#include "bellows/runtime/engine.h"

namespace bellows {

/// Bytes on `rank` by kind, from the model's sizes alone: the formula of docs/memory.md. `states`: arrays of the optimizer
/// (AdamW: 2). Shares are taken as even; in truth ranks differ by a chunk or two. Same lines as Engine::memory(), which
/// counts what was really allocated.
std::vector<MemoryLine> plan_memory(const ParameterSet& parameters, const EngineOptions& options, int states,
                                    int world_size, int rank = 0);

}  // namespace bellows
