#include "sample.h"

#include <algorithm>
#include <cmath>

#include "bellows/base/error.h"
#include "bellows/base/philox.h"
#include "model.h"

namespace gpt {
namespace {

constexpr std::uint64_t kSampleStream = 0x53414d504c45;  // apart from every stream of training

/// A text that grows at its end, in a model's window of `seq` positions.
class Window {
 public:
  Window(const GptConfig& config, bellows::DType precision, const void* params, bellows::ThreadPool& pool)
      : model_(config, 1, precision, pool), tokens_(model_.config().seq, 0) {
    const auto* at = static_cast<const std::byte*>(params);
    for (const auto& unit : model_.layout().units) {
      units_.push_back(at);
      at += unit.count * size_of(precision);
    }
  }

  void append(std::int32_t token) {
    const long seq = model_.config().seq, half = seq / 2;
    if (length_ == seq) {
      std::copy(tokens_.end() - half, tokens_.end(), tokens_.begin());
      length_ = half;
      known_ = 0;  // every position moved
    }
    tokens_[length_++] = token;
  }

  /// Logits of what comes next.
  void next(std::span<float> logits) {
    model_.limit_forward(known_, length_);
    model_.embed_forward(units_.front(), tokens_);
    for (int l = 0; l < model_.config().layers; ++l) model_.block_forward(l, units_[1 + l]);
    model_.logits(units_.back(), units_.front(), length_ - 1, logits);
    known_ = length_;
  }
  int vocab() const { return model_.config().vocab; }

 private:
  GptModel model_;
  std::vector<const void*> units_;
  std::vector<std::int32_t> tokens_;
  long length_ = 0;
  long known_ = 0;  // positions whose activations the model holds
};

}  // namespace

std::int32_t choose_token(std::span<const float> logits, double temperature, std::uint64_t seed, std::uint64_t draw) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return static_cast<std::int32_t>(largest - logits.begin());
  std::vector<double> weight(logits.size());
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i)
    total += weight[i] = std::exp((static_cast<double>(logits[i]) - static_cast<double>(*largest)) / temperature);
  double left = bellows::Philox(seed, kSampleStream).uniform(draw) * total;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    left -= weight[i];
    if (left < 0) return static_cast<std::int32_t>(i);
  }
  return static_cast<std::int32_t>(largest - logits.begin());  // rounding left a crumb
}

std::vector<std::int32_t> sample_tokens(const GptConfig& config, bellows::DType precision, const void* params,
                                        bellows::ThreadPool& pool, std::span<const std::int32_t> prompt,
                                        const SampleOptions& options) {
  if (prompt.empty()) throw bellows::UserError("a sample needs a prompt of at least one token");
  Window window(config, precision, params, pool);
  for (const std::int32_t token : prompt) window.append(token);
  std::vector<float> logits(window.vocab());
  std::vector<std::int32_t> text;
  for (int i = 0; i < options.count; ++i) {
    window.next(logits);
    text.push_back(choose_token(logits, options.temperature, options.seed, i));
    window.append(text.back());
  }
  return text;
}

std::string sample(const GptConfig& config, bellows::DType precision, const void* params, bellows::ThreadPool& pool,
                   std::uint64_t seed, int count, double temperature) {
  const std::int32_t line_end[] = {'\n'};
  const auto tokens = sample_tokens(config, precision, params, pool, line_end, {seed, count, temperature});
  std::string text;
  for (const std::int32_t token : tokens) text += static_cast<char>(token);
  return text;
}

}  // namespace gpt
