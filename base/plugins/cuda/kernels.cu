#include "bellows/base/device_ops.h"
#include "bellows/base/lane_sum.h"
#include "kernels.h"
#include "launch.cuh"

namespace bellows {
namespace {

struct Cast {
  bf16* out;
  const float* in;
  __device__ void operator()(std::size_t i) const { out[i] = bf16(in[i]); }
};

struct LaneSum {
  float* out;
  int count;
  const float* lanes[kMaxLanes];  // travels as a kernel argument: 2 KiB
  __device__ void operator()(std::size_t i) const {
    const LaneSum& self = *this;
    out[i] = lane_tree_sum<float>(count, Load{self, i});
  }
  struct Load {
    const LaneSum& sum;
    std::size_t i;
    __device__ float operator()(int lane) const { return sum.lanes[lane][i]; }
  };
};

}  // namespace

void cuda_cast_to_bf16(void* stream, bf16* out, const float* in, std::size_t n) { for_each(stream, n, Cast{out, in}); }

void cuda_lane_sum(void* stream, float* out, const float* const* lanes, int lane_count, std::size_t n) {
  LaneSum sum{out, lane_count, {}};
  std::copy(lanes, lanes + lane_count, sum.lanes);
  for_each(stream, n, sum);
}

}  // namespace bellows
