#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "bellows/base/philox.h"
#include "bellows/base/thread_pool.h"
#include "model.h"

namespace gpt {

inline GptConfig tiny() {
  GptConfig c;
  c.vocab = 37;
  c.layers = 2;
  c.heads = 3;
  c.dim = 30;
  c.hidden = 41;
  c.seq = 9;
  return c;
}
inline GptConfig tiny_llama() {
  GptConfig c = GptConfig::llama();
  c.vocab = 37;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = 2;
  c.dim = 24;
  c.hidden = 41;
  c.seq = 9;
  return c;
}

struct Batch {
  std::vector<std::int32_t> tokens, targets;
};
inline Batch random_batch(const GptConfig& c, int micro_batch, std::uint64_t seed, double ignored = 0) {
  const bellows::Philox random(seed, 5);
  Batch batch;
  for (int i = 0; i < micro_batch * c.seq; ++i) {
    batch.tokens.push_back(static_cast<std::int32_t>(random.bits64(3 * i) % c.vocab));
    batch.targets.push_back(
        random.uniform(3 * i + 1) < ignored ? -1 : static_cast<std::int32_t>(random.bits64(3 * i + 2) % c.vocab));
  }
  return batch;
}

/// A model with its parameters and gradients in plain vectors, in the compute type T.
template <class T>
struct Rig {
  Rig(const GptConfig& config, int micro_batch, int threads = 1, std::size_t misalign = 0)
      : pool(threads),
        model(config, micro_batch, bellows::dtype_of<T>(), pool),
        misalign_(misalign),
        memory_(model.layout().total() + misalign),
        gradient_(model.layout().total() + misalign, std::numeric_limits<float>::quiet_NaN()) {
    // Larger than a real start, so that every part of the model matters to the loss.
    const float stddev = 1.4f / std::sqrt(static_cast<float>(config.dim));
    std::size_t at = 0;
    for (const auto& unit : model.layout().units) {
      begin_.push_back(at);
      for (const auto& p : unit.parameters)
        for (std::size_t i = 0; i < p.count; ++i, ++at)
          params()[at] = static_cast<T>((p.start.kind == Start::Kind::kOnes ? 1.0f : 0.0f) +
                                        stddev * bellows::Philox(3, 0).normal(at));
    }
  }

  T* params() { return memory_.data() + misalign_; }
  float* grads() { return gradient_.data() + misalign_; }
  std::size_t size() const { return model.layout().total(); }
  std::span<float> gradient() { return {grads(), size()}; }
  const void* unit(std::size_t u) { return params() + begin_[u]; }
  UnitGradient gradient(std::size_t u, bool accumulate) { return {grads() + begin_[u], accumulate}; }
  std::size_t begin(std::size_t u) const { return begin_[u]; }
  std::size_t head() const { return begin_.size() - 1; }

  LossSum forward(const Batch& batch, bool backward_follows) {
    model.embed_forward(unit(0), batch.tokens);
    for (int l = 0; l < model.config().layers; ++l) model.block_forward(l, unit(1 + l));
    return model.head_forward(unit(head()), unit(0), batch.targets, backward_follows);
  }
  LossSum step(const Batch& batch, bool accumulate = false) {
    const LossSum loss = forward(batch, true);
    model.head_backward(gradient(head(), accumulate), gradient(0, accumulate));
    for (int l = model.config().layers - 1; l >= 0; --l)
      model.block_backward(l, unit(1 + l), gradient(1 + l, accumulate));
    model.embed_backward(gradient(0, accumulate || model.config().tied));
    return loss;
  }

  bellows::ThreadPool pool;
  GptModel model;

 private:
  std::size_t misalign_;
  std::vector<T> memory_;
  std::vector<float> gradient_;
  std::vector<std::size_t> begin_;
};

}  // namespace gpt
