#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "check.h"

namespace bellows {

/// Runs f(i) for i in [0, n) on the device: one thread takes every (threads in the grid)-th element.
template <class F>
__global__ void for_each_kernel(std::size_t n, F f) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) f(i);
}

template <class F>
void for_each(void* stream, std::size_t n, const F& f) {
  if (n == 0) return;
  constexpr unsigned kThreads = 256;
  constexpr std::size_t kMaxBlocks = 1 << 16;  // enough to fill any device several times over
  const auto blocks = static_cast<unsigned>(std::min((n + kThreads - 1) / kThreads, kMaxBlocks));
  for_each_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(n, f);
  cuda_check(cudaGetLastError(), "kernel launch");
}

}  // namespace bellows
