#include <cstddef>
#include <string>

#include "bellows/base/cuda_plugin.h"
#include "bellows/base/device.h"
#include "bellows/optimizer/optimizer.h"
#include "optimizers/check_config.h"
#include "optimizers/check_slice.h"
#include "optimizers/cuda_kernels.h"
#include "optimizers/sgd_element.h"

namespace bellows {
namespace {

template <bool kMomentum, bool kLow>
void sweep(const SgdStep s, std::size_t n, float* __restrict param, float* __restrict momentum,
           const float* __restrict grad, bf16* __restrict low) {
  for (std::size_t i = 0; i < n; ++i) {
    if constexpr (kMomentum) {
      sgd_momentum_element(s, param[i], momentum[i], grad[i]);
    } else {
      sgd_element(s, param[i], grad[i]);
    }
    if constexpr (kLow) low[i] = bf16(param[i]);
  }
}

// Plain SGD where momentum is 0: it then keeps no state at all.
class Sgd final : public Optimizer {
 public:
  explicit Sgd(const SgdConfig& config) : config_(config) {
    check_range("sgd", "momentum", config.momentum, 0.0, 1.0);
    check_range("sgd", "weight_decay", config.weight_decay, 0.0, 1e6);
  }

  std::string name() const override { return "sgd"; }
  std::string fingerprint() const override {
    return "sgd(momentum=" + exact(config_.momentum) + ",weight_decay=" + exact(config_.weight_decay) + ")";
  }
  std::vector<std::string> state_names() const override {
    return config_.momentum > 0 ? std::vector<std::string>{"momentum"} : std::vector<std::string>{};
  }
  float weight_decay() const override { return config_.weight_decay; }

  void update(const Slice& slice, const Hyper& hyper) const override {
    const bool momentum = config_.momentum > 0;
    check_slice(slice, momentum ? 1 : 0);
    const SgdStep s = sgd_step(config_, hyper);
    const auto run = momentum ? (slice.low.empty() ? sweep<true, false> : sweep<true, true>)
                              : (slice.low.empty() ? sweep<false, false> : sweep<false, true>);
    run(s, slice.params.size(), slice.params.data(), slice.state[0].data(), slice.grads.data(), slice.low.data());
  }

  void enqueue(Stream& stream, const Slice& slice, const Hyper& hyper) const override {
    if (stream.device().kind() == Device::Kind::kCpu) return update(slice, hyper);
    check_slice(slice, config_.momentum > 0 ? 1 : 0);
    const SgdStep s = sgd_step(config_, hyper);
    static const auto kernel = reinterpret_cast<bellows_cuda_sgd_t*>(cuda_symbol("bellows_cuda_sgd"));
    kernel(stream.native(), &s, &slice);
  }

 private:
  const SgdConfig config_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const SgdConfig& config) { return std::make_unique<Sgd>(config); }

}  // namespace bellows
