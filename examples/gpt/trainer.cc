#include "trainer.h"

#include <optional>

#include "bellows/base/philox.h"
#include "bellows/runtime/data.h"

namespace gpt {

using bellows::MicroBatch;
using bellows::UnitId;
using bellows::UnitUse;

Source text_source(const std::vector<std::string>& files, int seq, std::uint64_t seed) {
  auto data = std::make_shared<bellows::TextData>(files, seq, seed);
  return {[data](auto n, auto tokens, auto targets) { data->train(n, tokens, targets); },
          [data](auto n, auto tokens, auto targets) { data->held_out(n, tokens, targets); },
          data->held_out_samples(), data->fingerprint()};
}

Source synthetic_source(int vocab, int seq, std::uint64_t seed) {
  const auto fill = [=](std::uint64_t stream, std::int64_t n, std::span<std::int32_t> tokens,
                        std::span<std::int32_t> targets) {
    const bellows::Philox random(seed, stream);
    const auto token = [&](int i) {
      return static_cast<std::int32_t>(random.uniform(static_cast<std::uint64_t>(n) * (seq + 1) + i) * vocab);
    };
    std::int32_t next = token(0);
    for (int i = 0; i < seq; ++i) {
      tokens[i] = next;
      targets[i] = next = token(i + 1);
    }
  };
  return {[=](auto n, auto tokens, auto targets) { fill(1, n, tokens, targets); },
          [=](auto n, auto tokens, auto targets) { fill(2, n, tokens, targets); }, std::int64_t{1} << 20,
          "synthetic vocab " + std::to_string(vocab)};
}

Trainer::Trainer(const GptConfig& config, int micro_batch, bellows::DType precision, Source source,
                 bellows::ThreadPool& pool)
    : source_(std::move(source)), model_(config, micro_batch, precision, pool), tied_(config.tied),
      tokens_(model_.rows()), targets_(model_.rows()) {}

bellows::ParameterSet Trainer::parameters() const {
  bellows::ParameterSet set;
  for (const GptUnit& unit : model_.layout().units) {
    const UnitId id = set.add_unit(unit.name, unit.backward_uses);
    for (const GptParameter& p : unit.parameters) {
      bellows::ParameterOptions options;
      options.decay = p.decay;
      switch (p.start.kind) {
        case Start::Kind::kZeros: options.init = bellows::Init::zeros(); break;
        case Start::Kind::kOnes: options.init = bellows::Init::ones(); break;
        case Start::Kind::kNormal: options.init = bellows::Init::normal(p.start.stddev); break;
      }
      set.add(id, p.name, p.shape, options);
    }
  }
  return set;
}

void Trainer::step(bellows::Step& step) {
  const int layers = model_.config().layers, seq = model_.config().seq;
  const UnitId embedding{0}, head{layers + 1};
  const auto block = [](int layer) { return UnitId{1 + layer}; };
  const auto gradient = [](const UnitUse& use) { return UnitGradient{use.grads(), use.accumulate()}; };

  for (MicroBatch& batch : step) {
    {
      const auto wait = batch.data_wait();
      const auto& read = step.evaluating() ? source_.held_out : source_.train;
      std::size_t at = 0;
      for (const std::int64_t sample : batch.samples()) {
        read(sample, std::span(tokens_).subspan(at, seq), std::span(targets_).subspan(at, seq));
        at += seq;
      }
    }
    {
      const UnitUse use = batch.forward(embedding);
      model_.embed_forward(use.params(), tokens_);
    }
    for (int layer = 0; layer < layers; ++layer) {
      const UnitUse use = batch.forward(block(layer));
      model_.block_forward(layer, use.params());
    }
    LossSum loss;
    {
      const UnitUse use = batch.forward(head);
      std::optional<UnitUse> table;
      if (tied_) table.emplace(batch.forward(embedding));
      loss = model_.head_forward(use.params(), tied_ ? table->params() : nullptr, targets_, !step.evaluating());
    }
    batch.report(loss.sum, loss.tokens);
    if (step.evaluating()) continue;
    {
      const UnitUse use = batch.backward(head);
      std::optional<UnitUse> table;
      if (tied_) table.emplace(batch.backward(embedding));
      model_.head_backward(gradient(use), tied_ ? gradient(*table) : UnitGradient{});
    }
    for (int layer = layers - 1; layer >= 0; --layer) {
      const UnitUse use = batch.backward(block(layer));
      model_.block_backward(layer, use.params(), gradient(use));
    }
    {
      const UnitUse use = batch.backward(embedding);
      model_.embed_backward(gradient(use));
    }
  }
}

}  // namespace gpt
