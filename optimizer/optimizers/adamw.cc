#include <cstddef>
#include <string>

#include "bellows/base/cuda_plugin.h"
#include "bellows/base/device.h"
#include "bellows/optimizer/optimizer.h"
#include "optimizers/adamw_element.h"
#include "optimizers/check_config.h"
#include "optimizers/check_slice.h"
#include "optimizers/cuda_kernels.h"

namespace bellows {
namespace {

// One pass over memory: 28 bytes an element, 30 with the low-precision copy. The division and the square root of a
// vector hide behind the loads, so the loop runs at the speed of memory.
template <bool kLow>
void sweep(const AdamWStep s, std::size_t n, float* __restrict param, float* __restrict exp_avg,
           float* __restrict exp_avg_sq, const float* __restrict grad, bf16* __restrict low) {
  for (std::size_t i = 0; i < n; ++i) {
    adamw_element(s, param[i], exp_avg[i], exp_avg_sq[i], grad[i]);
    if constexpr (kLow) low[i] = bf16(param[i]);
  }
}

class AdamW final : public Optimizer {
 public:
  explicit AdamW(const AdamWConfig& config) : config_(config) {
    check_range("adamw", "beta1", config.beta1, 0.0, 1.0);
    check_range("adamw", "beta2", config.beta2, 0.0, 1.0);
    check_positive("adamw", "epsilon", config.epsilon);
    check_range("adamw", "weight_decay", config.weight_decay, 0.0, 1e6);
  }

  std::string name() const override { return "adamw"; }
  std::string fingerprint() const override {
    return "adamw(beta1=" + exact(config_.beta1) + ",beta2=" + exact(config_.beta2) +
           ",epsilon=" + exact(config_.epsilon) + ",weight_decay=" + exact(config_.weight_decay) + ")";
  }
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  float weight_decay() const override { return config_.weight_decay; }

  void update(const Slice& slice, const Hyper& hyper) const override {
    check_slice(slice, 2);
    const AdamWStep s = adamw_step(config_, hyper);
    const auto run = slice.low.empty() ? sweep<false> : sweep<true>;
    run(s, slice.params.size(), slice.params.data(), slice.state[0].data(), slice.state[1].data(), slice.grads.data(),
        slice.low.data());
  }

  void enqueue(Stream& stream, const Slice& slice, const Hyper& hyper) const override {
    if (stream.device().kind() == Device::Kind::kCpu) return update(slice, hyper);
    check_slice(slice, 2);
    const AdamWStep s = adamw_step(config_, hyper);
    static const auto kernel = reinterpret_cast<bellows_cuda_adamw_t*>(cuda_symbol("bellows_cuda_adamw"));
    kernel(stream.native(), &s, &slice);
  }

 private:
  const AdamWConfig config_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const AdamWConfig& config) { return std::make_unique<AdamW>(config); }

}  // namespace bellows
