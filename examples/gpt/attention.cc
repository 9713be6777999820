#include "attention.h"

#include <cmath>

#include "vec.h"

namespace gpt {
namespace {

constexpr long kBlock = 64;

}  // namespace

template <class T>
AttentionKernel<T>::AttentionKernel(MatMulSet& products, const GptConfig& c, const Rotary* rotary)
    : seq_(c.seq),
      heads_(c.heads),
      kv_heads_(c.kv_heads),
      head_dim_(c.head_dim()),
      qkv_dim_(c.qkv_dim()),
      dim_(c.dim),
      scale_(1.0f / std::sqrt(static_cast<float>(c.head_dim()))),
      rotary_(rotary) {
  const auto type = bellows::dtype_of<T>();
  const Cut cut{seq_, std::min(seq_, kBlock)};
  for (long i = 0; i < cut.count(); ++i) {
    Block b{};
    b.first = cut.begin(i);
    b.rows = cut.size(i);
    b.keys = b.first + b.rows;
    const long m = b.rows, n = b.keys, d = head_dim_;
    b.scores = &products.get(
        {.m = m, .n = n, .k = d, .lda = qkv_dim_, .ldb = qkv_dim_, .ldc = n, .b_transposed = true, .type = type});
    b.values = &products.get({.m = m, .n = d, .k = n, .lda = n, .ldb = qkv_dim_, .ldc = d, .type = type});
    b.dprobabilities = &products.get(
        {.m = m, .n = n, .k = d, .lda = dim_, .ldb = qkv_dim_, .ldc = n, .b_transposed = true, .type = type});
    b.dqueries = &products.get({.m = m, .n = d, .k = n, .lda = n, .ldb = qkv_dim_, .ldc = d, .type = type});
    for (const bool accumulate : {false, true}) {
      b.dkeys[accumulate] = &products.get({.m = n,
                                           .n = d,
                                           .k = m,
                                           .lda = n,
                                           .ldb = qkv_dim_,
                                           .ldc = d,
                                           .a_transposed = true,
                                           .accumulate = accumulate,
                                           .type = type});
      b.dvalues[accumulate] = &products.get({.m = n,
                                             .n = d,
                                             .k = m,
                                             .lda = n,
                                             .ldb = dim_,
                                             .ldc = d,
                                             .a_transposed = true,
                                             .accumulate = accumulate,
                                             .type = type});
    }
    blocks_.push_back(b);
  }
  products.workers().require_scratch(scratch_bytes());
}

template <class T>
std::size_t AttentionKernel<T>::scratch_bytes() const {
  const long block = std::min(seq_, kBlock);
  return 2 * Arena::padded<float>(block * seq_) + 2 * Arena::padded<T>(block * seq_) +
         Arena::padded<float>(block * head_dim_) + 2 * Arena::padded<float>(seq_ * head_dim_) +
         Arena::padded<float>(block);
}

// Probabilities without their common factor 1/sum, which the few columns of the result take instead.
template <class T>
void AttentionKernel<T>::softmax(const Block& block, const float* scores, T* probabilities, float* inverse_sum,
                                 float* lse) const {
  for (long r = 0; r < block.rows; ++r) {
    const float* s = scores + r * block.keys;
    T* p = probabilities + r * block.keys;
    const long visible = block.first + r + 1;
    Vec top = broadcast(s[0]);
    each_vec(visible, [&](long i, auto n) { top = larger(keep(load(s + i, n), n, s[0]), top); });
    const float largest = lane_max(top) * scale_;
    const Vec shift = broadcast(-largest), scale = broadcast(scale_);
    Vec sum{};
    each_vec(visible, [&](long i, auto n) {
      const Vec e = keep(exp(fma(load(s + i, n), scale, shift)), n);
      sum += e;
      store(p + i, e, n);
    });
    each_vec(block.keys - visible, [&](long i, auto n) { store(p + visible + i, Vec{}, n); });
    const float total = lane_sum(sum);
    inverse_sum[r] = 1.0f / total;
    lse[block.first + r] = largest + std::log(total);
  }
}

template <class T>
void AttentionKernel<T>::forward(Worker& worker, const T* qkv, long kv_head, T* out, float* lse, long first_row,
                                 long last_row) const {
  worker.product_kind = Kernel::kAttentionProduct;
  Arena arena(worker);
  const long block_rows = blocks_.front().rows;
  float* scores = arena.take<float>(block_rows * seq_);
  T* probabilities = arena.take<T>(block_rows * seq_);
  float* result = arena.take<float>(block_rows * head_dim_);
  float* inverse_sum = arena.take<float>(block_rows);
  const long group = heads_ / kv_heads_;
  const T* keys = qkv + (heads_ + kv_head) * head_dim_;
  const T* values = keys + kv_heads_ * head_dim_;
  for (long head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (const Block& block : blocks_) {
      if (block.keys <= first_row || block.first >= last_row) continue;
      const T* queries = qkv + block.first * qkv_dim_ + head * head_dim_;
      block.scores->run(worker, queries, keys, scores);
      {
        const KernelScope scope(worker, Kernel::kSoftmax);
        softmax(block, scores, probabilities, inverse_sum, lse + head * seq_);
      }
      block.values->run(worker, probabilities, values, result);
      for (long r = 0; r < block.rows; ++r) {
        const float* from = result + r * head_dim_;
        T* to = out + (block.first + r) * dim_ + head * head_dim_;
        each_vec(head_dim_, [&](long i, auto n) { store(to + i, load(from + i, n) * inverse_sum[r], n); });
      }
    }
}

template <class T>
void AttentionKernel<T>::softmax_backward(const Block& block, const float* scores, const float* dprobabilities,
                                          const float* lse, const T* out, const T* dout, T* probabilities,
                                          T* dscores) const {
  for (long r = 0; r < block.rows; ++r) {
    const float* s = scores + r * block.keys;
    const float* dp = dprobabilities + r * block.keys;
    T* p = probabilities + r * block.keys;
    T* ds = dscores + r * block.keys;
    const long visible = block.first + r + 1;
    Vec dot{};
    each_vec(head_dim_,
             [&](long i, auto n) { dot = fma(load(out + r * dim_ + i, n), load(dout + r * dim_ + i, n), dot); });
    const Vec mean = broadcast(lane_sum(dot)), shift = broadcast(-lse[block.first + r]), scale = broadcast(scale_);
    each_vec(visible, [&](long i, auto n) {
      const Vec e = exp(fma(load(s + i, n), scale, shift));
      store(p + i, e, n);
      store(ds + i, e * (load(dp + i, n) - mean) * scale, n);
    });
    each_vec(block.keys - visible, [&](long i, auto n) {
      store(p + visible + i, Vec{}, n);
      store(ds + visible + i, Vec{}, n);
    });
  }
}

template <class T>
void AttentionKernel<T>::backward(Worker& worker, const T* qkv, const T* out, const float* lse, const T* dout,
                                  long kv_head, T* dqkv) const {
  worker.product_kind = Kernel::kAttentionProduct;
  Arena arena(worker);
  const long block_rows = blocks_.front().rows;
  float* scores = arena.take<float>(block_rows * seq_);
  float* dprobabilities = arena.take<float>(block_rows * seq_);
  T* probabilities = arena.take<T>(block_rows * seq_);
  T* dscores = arena.take<T>(block_rows * seq_);
  float* dqueries = arena.take<float>(block_rows * head_dim_);
  float* dkeys = arena.take<float>(seq_ * head_dim_);
  float* dvalues = arena.take<float>(seq_ * head_dim_);
  const long group = heads_ / kv_heads_;
  const T* keys = qkv + (heads_ + kv_head) * head_dim_;
  const T* values = keys + kv_heads_ * head_dim_;
  const auto write_rows = [&](float* from, long first, long rows, T* to, bool turned) {
    for (long r = 0; r < rows; ++r) {
      float* row = from + r * head_dim_;
      if (turned && rotary_ != nullptr) rotary_->backward(first + r, row, 1);
      each_vec(head_dim_, [&](long i, auto n) { store(to + (first + r) * qkv_dim_ + i, load(row + i, n), n); });
    }
  };
  // The last block sees every key, so it comes first and overwrites; the others add.
  bool accumulate = false;
  for (long head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (auto at = blocks_.rbegin(); at != blocks_.rend(); ++at) {
      const Block& block = *at;
      const T* queries = qkv + block.first * qkv_dim_ + head * head_dim_;
      const T* dresult = dout + block.first * dim_ + head * head_dim_;
      block.scores->run(worker, queries, keys, scores);
      block.dprobabilities->run(worker, dresult, values, dprobabilities);
      {
        const KernelScope scope(worker, Kernel::kSoftmax);
        softmax_backward(block, scores, dprobabilities, lse + head * seq_, out + block.first * dim_ + head * head_dim_,
                         dresult, probabilities, dscores);
      }
      block.dvalues[accumulate]->run(worker, probabilities, dresult, dvalues);
      block.dkeys[accumulate]->run(worker, dscores, queries, dkeys);
      block.dqueries->run(worker, dscores, keys, dqueries);
      write_rows(dqueries, block.first, block.rows, dqkv + head * head_dim_, true);
      accumulate = true;
    }
  write_rows(dkeys, 0, seq_, dqkv + (heads_ + kv_head) * head_dim_, true);
  write_rows(dvalues, 0, seq_, dqkv + (heads_ + kv_heads_ + kv_head) * head_dim_, false);
}

template class AttentionKernel<float>;
template class AttentionKernel<bellows::bf16>;

}  // namespace gpt
