#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/base/dtype.h"

namespace bellows {

class Stream;

/// The numbers of one step, the same on every rank.
struct Hyper {
  float learning_rate = 0;
  float weight_decay = 0;  ///< 0 for elements of parameters that are not decayed
  float grad_scale = 1;    ///< multiplies every gradient: 1 / tokens, times the clipping coefficient
  std::int64_t step = 1;   ///< 1 for the first update
};

/// A run of elements that are updated alike. All spans have the same length; `low` may be empty.
struct Slice {
  static constexpr int kMaxStates = 4;
  std::span<float> params;  ///< master weights, updated in place
  std::span<const float> grads;
  std::array<std::span<float>, kMaxStates> state;  ///< in the order of state_names()
  std::span<bf16> low;                             ///< gets the updated weights rounded to bfloat16
};

/// An optimizer is maths on spans: it knows neither the world nor who owns what. Its state is named arrays as long as
/// the shard, held and moved by the engine. `update` is element-wise, thread-safe, and gives the same bits however a
/// shard is cut into slices.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual std::string name() const = 0;                      ///< registry name
  virtual std::string fingerprint() const = 0;               ///< name and settings that change numbers
  virtual std::vector<std::string> state_names() const = 0;  ///< for instance {"exp_avg", "exp_avg_sq"}
  virtual float weight_decay() const = 0;
  virtual void update(const Slice& slice, const Hyper& hyper) const = 0;
  /// The same update queued on a stream, the same bits: the spans are memory of the stream's device and stay borrowed
  /// until it is done.
  virtual void enqueue(Stream& stream, const Slice& slice, const Hyper& hyper) const = 0;
};

struct AdamWConfig {
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;  ///< decoupled (Loshchilov and Hutter, 2019)
};
struct SgdConfig {
  float momentum = 0.9f;
  float weight_decay = 0.0f;
};
std::unique_ptr<Optimizer> make_adamw(const AdamWConfig& config = {});
std::unique_ptr<Optimizer> make_sgd(const SgdConfig& config = {});

/// By registry name with default settings; throws UserError naming the known ones.
std::unique_ptr<Optimizer> make_optimizer(std::string_view name);
std::vector<std::string> optimizer_names();

}  // namespace bellows
