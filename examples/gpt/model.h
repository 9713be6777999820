#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "bellows/base/dtype.h"
#include "bellows/base/thread_pool.h"
#include "config.h"
#include "layout.h"
#include "workers.h"

namespace gpt {

/// A unit's flat float32 gradient. `accumulate`: add to it; otherwise its content is undefined and all of it is
/// written.
struct UnitGradient {
  float* values = nullptr;
  bool accumulate = false;
};

struct LossSum {
  double sum = 0;  ///< over the tokens that count
  std::int64_t tokens = 0;
};

/// The forward and backward pass of one micro-batch, in pieces that each touch one unit of parameters, so that the
/// caller can have units come and go around them:
///
///     embed_forward, block_forward(0 ... L-1), head_forward,
///     head_backward, block_backward(L-1 ... 0), embed_backward
///
/// Parameters and gradients are the caller's memory: a unit's flat parameters in the compute type (float or bf16), its
/// flat gradient in float32, both in GptLayout's order. Nothing of them is kept between calls. Activations live in
/// memory made once by the constructor; a model works on one micro-batch at a time and is called from one thread.
///
/// The gradients are those of the loss summed over tokens. In bfloat16 the operands of matrix products, and what is
/// kept of activations, are bfloat16; sums, the residual stream, norms, softmax and the loss are float32.
///
/// Bits: tasks are cut by shapes alone and every sum has a fixed order, so results depend neither on the number of
/// threads nor on where buffers lie.
class GptModel {
 public:
  /// `precision` is kF32 or kBF16. The pool must outlive the model.
  GptModel(const GptConfig& config, int micro_batch, bellows::DType precision, bellows::ThreadPool& pool);
  ~GptModel();

  const GptConfig& config() const;
  const GptLayout& layout() const;
  int micro_batch() const;
  /// Tokens of a micro-batch.
  long rows() const { return static_cast<long>(micro_batch()) * config().seq; }

  /// `tokens`: micro_batch * seq, each below the vocabulary (UserError otherwise).
  void embed_forward(const void* embedding, std::span<const std::int32_t> tokens);
  void block_forward(int layer, const void* block);
  /// The loss of `targets` (a negative one does not count). With a tied head `embedding` holds the head's weight, else
  /// it is ignored. `backward_follows`: prepares everything that head_backward and the blocks need.
  LossSum head_forward(const void* head, const void* embedding, std::span<const std::int32_t> targets,
                       bool backward_follows);
  /// Gradients of the final norm and of the head; with a tied head the latter goes to `embedding`, whose other parts
  /// are zeroed if it does not accumulate.
  void head_backward(UnitGradient head, UnitGradient embedding);
  void block_backward(int layer, const void* block, UnitGradient gradient);
  void embed_backward(UnitGradient gradient);

  /// For generation: forward passes that follow compute only positions [first, last) of every sequence (rounded
  /// outward to whole blocks of rows) and find the earlier ones as an earlier pass left them. Only for micro_batch 1.
  void limit_forward(long first, long last);
  /// After the blocks: the logits of one row, `out` as long as the vocabulary.
  void logits(const void* head, const void* embedding, long row, std::span<float> out);

  /// Activations, packed weights and scratch: everything that the constructor allocated.
  std::size_t bytes() const;
  Workers& workers();

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpt
