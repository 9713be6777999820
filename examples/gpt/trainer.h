#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bellows/elastic/session.h"
#include "model.h"

namespace gpt {

/// Where a sample's tokens come from: fills `tokens` and `targets` (seq values each) for training sample number `n` of
/// the run, or held-out sequence `n`.
struct Source {
  std::function<void(std::int64_t n, std::span<std::int32_t> tokens, std::span<std::int32_t> targets)> train, held_out;
  std::int64_t held_out_samples = 0;   ///< 0: nothing to evaluate on
  std::string fingerprint;
};
/// Text files as bytes; see bellows::TextData for what is refused.
Source text_source(const std::vector<std::string>& files, int seq, std::uint64_t seed);
/// Random tokens of a vocabulary, for benchmarks: nothing can be learnt from them but their frequencies.
Source synthetic_source(int vocab, int seq, std::uint64_t seed);

/// The model as units of a ParameterSet, and the step function that runs it.
class Trainer {
 public:
  Trainer(const GptConfig& config, int micro_batch, bellows::DType precision, Source source, bellows::ThreadPool& pool);

  bellows::ParameterSet parameters() const;
  const Source& source() const { return source_; }
  GptModel& model() { return model_; }
  /// Forward and backward of this rank's micro-batches; forward only, on held-out data, in an evaluation.
  void step(bellows::Step& step);

 private:
  Source source_;
  GptModel model_;
  const bool tied_;
  std::vector<std::int32_t> tokens_, targets_;
};

}  // namespace gpt
