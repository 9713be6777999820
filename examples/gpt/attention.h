#pragma once
#include <vector>

#include "config.h"
#include "linear.h"
#include "rotary.h"

namespace gpt {

/// Causal attention of one sequence, one head of keys and values at a time (with all query heads that share it), as a
/// task of one thread. Queries come in blocks of 64 rows; a block meets only the keys up to its own last row, so the
/// half above the diagonal costs (almost) nothing. Forward keeps one number per row and head, the logarithm of the sum
/// of exponentials; backward recomputes the probabilities from it.
///
/// A row of `qkv` holds the query heads, the key heads, the value heads; a row of `out` the query heads.
template <class T>
class AttentionKernel {
 public:
  /// `rotary` (may be null) turns gradients of queries and keys back; forward expects them turned.
  AttentionKernel(MatMulSet& products, const GptConfig& config, const Rotary* rotary);

  std::size_t scratch_bytes() const;
  /// `lse` is (heads, seq). Only blocks that hold rows of [first_row, last_row) are computed.
  void forward(Worker& worker, const T* qkv, long kv_head, T* out, float* lse, long first_row, long last_row) const;
  void backward(Worker& worker, const T* qkv, const T* out, const float* lse, const T* dout, long kv_head,
                T* dqkv) const;

 private:
  // The products of one block of queries.
  struct Block {
    long first, rows, keys;
    const MatMul *scores, *values, *dprobabilities, *dqueries;
    const MatMul *dkeys[2], *dvalues[2];  // by accumulate
  };
  void softmax(const Block& block, const float* scores, T* probabilities, float* inverse_sum, float* lse) const;
  void softmax_backward(const Block& block, const float* scores, const float* dprobabilities, const float* lse,
                        const T* out, const T* dout, T* probabilities, T* dscores) const;

  long seq_, heads_, kv_heads_, head_dim_, qkv_dim_, dim_;
  float scale_;
  const Rotary* rotary_;
  std::vector<Block> blocks_;
};

}  // namespace gpt
