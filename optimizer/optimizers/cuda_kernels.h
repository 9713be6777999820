#pragma once
#include "bellows/optimizer/optimizer.h"
#include "optimizers/adamw_element.h"
#include "optimizers/sgd_element.h"

// What this room keeps in libbellows_cuda.so, looked up by cuda_symbol("bellows_cuda_adamw") and so on. The spans of
// the slice are device memory; an optimizer without momentum leaves its state span empty.
extern "C" {
using bellows_cuda_adamw_t = void(void* stream, const bellows::AdamWStep* step, const bellows::Slice* slice);
using bellows_cuda_sgd_t = void(void* stream, const bellows::SgdStep* step, const bellows::Slice* slice);
}
