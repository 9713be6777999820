#include "bellows/base/device_ops.h"

#include "bellows/base/check.h"
#include "bellows/base/cuda_plugin.h"
#include "bellows/base/lane_sum.h"

namespace bellows {
namespace {

bool on_cpu(const Stream& stream) { return stream.device().kind() == Device::Kind::kCpu; }

}  // namespace

void cast_to_bf16(Stream& stream, std::span<bf16> out, std::span<const float> in) {
  BELLOWS_CHECK_EQ(out.size(), in.size());
  if (!on_cpu(stream)) return cuda_plugin().value()->cast_to_bf16(stream.native(), out.data(), in.data(), in.size());
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = bf16(in[i]);
}

void lane_sum(Stream& stream, std::span<float> out, std::span<const float* const> lanes) {
  BELLOWS_CHECK(!lanes.empty());
  BELLOWS_CHECK_LE(lanes.size(), kMaxLanes);
  const int count = static_cast<int>(lanes.size());
  if (!on_cpu(stream))
    return cuda_plugin().value()->lane_sum(stream.native(), out.data(), lanes.data(), count, out.size());
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = lane_tree_sum<float>(count, [&](int lane) { return lanes[static_cast<std::size_t>(lane)][i]; });
}

}  // namespace bellows
