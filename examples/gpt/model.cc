#include "model.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>
#include <vector>

#include "activation.h"
#include "activations.h"
#include "attention.h"
#include "bellows/base/error.h"
#include "linear.h"
#include "loss.h"
#include "norm.h"
#include "partial_sums.h"
#include "place.h"
#include "rotary.h"
#include "vec.h"

namespace gpt {

using bellows::bf16;
using bellows::DType;
using bellows::ThreadPool;

struct GptModel::Impl {
  Impl(const GptConfig& c, int batch, ThreadPool& threads)
      : config(c.resolved()), layout(config), micro_batch(batch), pool(threads), workers(threads.threads()) {}
  virtual ~Impl() = default;

  virtual void embed_forward(const void* embedding, std::span<const std::int32_t> tokens) = 0;
  virtual void block_forward(int layer, const void* block) = 0;
  virtual LossSum head_forward(const void* head, const void* embedding, std::span<const std::int32_t> targets,
                               bool backward) = 0;
  virtual void head_backward(UnitGradient head, UnitGradient embedding) = 0;
  virtual void block_backward(int layer, const void* block, UnitGradient gradient) = 0;
  virtual void embed_backward(UnitGradient gradient) = 0;
  virtual void limit_forward(long first, long last) = 0;
  virtual void logits(const void* head, const void* embedding, long row, std::span<float> out) = 0;
  virtual std::size_t bytes() const = 0;

  GptConfig config;
  GptLayout layout;
  int micro_batch;
  ThreadPool& pool;
  Workers workers;
};

namespace {

// Rows are worked on in blocks that fit the caches and still give every thread some. A function of the shape alone.
Cut row_blocks(long rows) { return {rows, std::min(rows, rows >= 512 ? 64L : rows >= 128 ? 32L : 16L)}; }

struct BlockPlaces {
  explicit BlockPlaces(const GptUnit& unit)
      : norm1(place(unit, "norm1.weight")),
        norm1_bias(place(unit, "norm1.bias")),
        qkv(place(unit, "attention.qkv.weight")),
        qkv_bias(place(unit, "attention.qkv.bias")),
        out(place(unit, "attention.out.weight")),
        out_bias(place(unit, "attention.out.bias")),
        norm2(place(unit, "norm2.weight")),
        norm2_bias(place(unit, "norm2.bias")),
        up(place(unit, "mlp.up.weight")),
        up_bias(place(unit, "mlp.up.bias")),
        down(place(unit, "mlp.down.weight")),
        down_bias(place(unit, "mlp.down.bias")) {}
  Place norm1, norm1_bias, qkv, qkv_bias, out, out_bias, norm2, norm2_bias, up, up_bias, down, down_bias;
};

// What a layer keeps from forward for backward.
template <class T>
struct Kept {
  float* input = nullptr;      // (rows, dim) residual stream before the block
  RowStats* stats1 = nullptr;  // (rows)
  T* qkv = nullptr;            // (rows, qkv_dim) with biases, queries and keys turned
  float* lse = nullptr;        // (micro_batch, heads, seq)
  T* attention = nullptr;      // (rows, dim)
  float* middle = nullptr;     // (rows, dim) residual stream after attention
  RowStats* stats2 = nullptr;  // (rows)
  T* up = nullptr;             // (rows, up_dim) before the activation
};

template <class T>
class Model final : public GptModel::Impl {
 public:
  Model(const GptConfig& c, int batch, ThreadPool& threads)
      : Impl(c, batch, threads),
        rows_(static_cast<long>(batch) * config.seq),
        cut_(row_blocks(rows_)),
        products_(workers),
        norm_(config.norm, config.dim, config.norm_epsilon),
        activation_(config.activation, config.hidden),
        block_(layout.block(0)),
        final_norm_(place(layout.head(), "norm.weight")),
        final_norm_bias_(place(layout.head(), "norm.bias")),
        output_(config.tied ? place(layout.embedding(), "tokens") : place(layout.head(), "output")),
        tokens_table_(place(layout.embedding(), "tokens")),
        positions_table_(place(layout.embedding(), "positions")),
        qkv_(products_, config.qkv_dim(), config.dim, cut_),
        out_(products_, config.dim, config.dim, cut_),
        up_(products_, config.up_dim(), config.dim, cut_),
        down_(products_, config.dim, config.hidden, cut_),
        head_(products_, config.vocab, config.dim, cut_, kHeadSlice),
        sums_({block_.norm1, block_.norm1_bias, block_.qkv_bias, block_.out_bias, block_.norm2, block_.norm2_bias,
               block_.up_bias, block_.down_bias},
              cut_.count()),
        head_sums_({final_norm_, final_norm_bias_}, cut_.count()),
        kept_(config.layers),
        row_loss_(rows_),
        tokens_(rows_) {
    if (config.position == Position::kRotary) rotary_.emplace(config.seq, config.head_dim(), config.rotary_base);
    attention_.emplace(products_, config, rotary_ ? &*rotary_ : nullptr);
    const std::size_t dim = rows_ * config.dim;
    for (auto& kept : kept_) {
      memory_.reserve(&kept.input, dim);
      memory_.reserve(&kept.stats1, rows_);
      memory_.reserve(&kept.qkv, rows_ * config.qkv_dim());
      memory_.reserve(&kept.lse, rows_ * config.heads);
      memory_.reserve(&kept.attention, dim);
      memory_.reserve(&kept.middle, dim);
      memory_.reserve(&kept.stats2, rows_);
      memory_.reserve(&kept.up, rows_ * config.up_dim());
    }
    memory_.reserve(&final_, dim);
    memory_.reserve(&final_scaled_, dim);
    memory_.reserve(&dlogits_, rows_ * config.vocab);
    for (float** gradient : {&dout_, &dmiddle_, &din_}) memory_.reserve(gradient, dim);
    memory_.reserve(&scaled1_, dim);
    memory_.reserve(&scaled2_, dim);
    memory_.reserve(&activated_, rows_ * config.hidden);
    memory_.reserve(&dup_, rows_ * config.up_dim());
    memory_.reserve(&dqkv_, rows_ * config.qkv_dim());
    memory_.reserve(&dattention_, dim);
    if constexpr (!kIsFloat) {
      for (T** gradient : {&dout_rounded_, &dmiddle_rounded_, &din_rounded_}) memory_.reserve(gradient, dim);
    }
    memory_.allocate();
    workers.require_scratch(scratch_bytes());
    limit_forward(0, config.seq);
  }

  void embed_forward(const void* embedding, std::span<const std::int32_t> tokens) override {
    BELLOWS_CHECK_EQ(static_cast<long>(tokens.size()), rows_);
    for (const std::int32_t token : tokens)
      if (token < 0 || token >= config.vocab)
        throw bellows::UserError("token " + std::to_string(token) + " is outside the vocabulary of " +
                                 std::to_string(config.vocab));
    std::copy(tokens.begin(), tokens.end(), tokens_.begin());
    const T* table = tokens_table_.in(static_cast<const T*>(embedding));
    const T* positions = positions_table_.in(static_cast<const T*>(embedding));
    for_forward_blocks(Kernel::kOther, [&](Worker&, long first, long rows, long) {
      for (long row = first; row < first + rows; ++row) {
        const T* token = table + static_cast<long>(tokens[row]) * config.dim;
        const T* position = positions != nullptr ? positions + row % config.seq * config.dim : nullptr;
        float* x = kept_[0].input + row * config.dim;
        each_vec(config.dim, [&](long i, auto n) {
          const Vec v = load(token + i, n);
          store(x + i, position != nullptr ? v + load(position + i, n) : v, n);
        });
      }
    });
  }

  void block_forward(int layer, const void* block) override {
    const T* unit = static_cast<const T*>(block);
    Kept<T>& kept = kept_[layer];
    float* output = layer + 1 < config.layers ? kept_[layer + 1].input : final_;
    pack_forward({{&qkv_, block_.qkv.in(unit)},
                  {&out_, block_.out.in(unit)},
                  {&up_, block_.up.in(unit)},
                  {&down_, block_.down.in(unit)}});
    for_forward_blocks(
        [&](Worker& worker, long first, long rows, long) { queries_keys_values(worker, unit, kept, first, rows); });
    attend(kept);
    for_forward_blocks(
        [&](Worker& worker, long first, long rows, long) { feed_forward(worker, unit, kept, output, first, rows); });
  }

  LossSum head_forward(const void* head, const void* embedding, std::span<const std::int32_t> targets,
                       bool backward) override {
    BELLOWS_CHECK_EQ(static_cast<long>(targets.size()), rows_);
    const T* norm_unit = static_cast<const T*>(head);
    const T* weight = output_.in(static_cast<const T*>(config.tied ? embedding : head));
    LossSum loss;
    for (const std::int32_t target : targets) {
      if (target >= config.vocab)
        throw bellows::UserError("target " + std::to_string(target) + " is outside the vocabulary of " +
                                 std::to_string(config.vocab));
      loss.tokens += target >= 0;
    }
    pack_forward({{&head_, weight}});
    if (backward) pack_backward({{&head_, weight}});
    for_blocks([&](Worker& worker, long first, long rows, long block) {
      head_rows(worker, norm_unit, targets, backward, first, rows, block);
    });
    for (const double row : row_loss_) loss.sum += row;
    return loss;
  }

  void head_backward(UnitGradient head, UnitGradient embedding) override {
    const UnitGradient output = config.tied ? embedding : head;
    const std::size_t slices = head_.gradient_tasks();
    float* rest = config.tied && !embedding.accumulate ? positions_table_.in(embedding.values) : nullptr;
    pool.run(slices + head_sums_.tasks() + 1, [&](std::size_t task) {
      Workers::Lease worker(workers);
      if (task < slices)
        return head_.gradient(*worker, task, dlogits_, final_scaled_, output_.in(output.values), output.accumulate);
      const KernelScope scope(*worker, Kernel::kOther);
      if (task < slices + head_sums_.tasks()) return head_sums_.reduce(task - slices, head);
      if (rest != nullptr) std::memset(rest, 0, positions_table_.count * sizeof(float));
    });
  }

  void block_backward(int layer, const void* block, UnitGradient gradient) override {
    const T* unit = static_cast<const T*>(block);
    Kept<T>& kept = kept_[layer];
    pack_backward({{&qkv_, block_.qkv.in(unit)},
                   {&out_, block_.out.in(unit)},
                   {&up_, block_.up.in(unit)},
                   {&down_, block_.down.in(unit)}});
    for_blocks([&](Worker& worker, long first, long rows, long b) {
      feed_forward_backward(worker, unit, kept, first, rows, b);
    });
    attend_backward(kept);
    for_blocks([&](Worker& worker, long first, long rows, long b) {
      queries_keys_values_backward(worker, unit, kept, first, rows, b);
    });
    weight_gradients(kept, gradient);
    std::swap(dout_, din_);
    std::swap(dout_rounded_, din_rounded_);
  }

  // In the order of tokens; parallel over columns, so that every sum has one order.
  void embed_backward(UnitGradient gradient) override {
    float* table = tokens_table_.in(gradient.values);
    float* positions = positions_table_.in(gradient.values);
    const Cut columns{config.dim, kColumns};
    const long dim = config.dim;
    pool.run(columns.count(), [&](std::size_t task) {
      Workers::Lease worker(workers);
      const KernelScope scope(*worker, Kernel::kOther);
      const long begin = columns.begin(task), size = columns.size(task);
      const auto add = [&](float* to, long row, bool fresh) {
        const float* from = dout_ + row * dim + begin;
        each_vec(size, [&](long i, auto n) {
          store(to + begin + i, fresh ? load(from + i, n) : load(to + begin + i, n) + load(from + i, n), n);
        });
      };
      if (!gradient.accumulate)
        for (long token = 0; token < config.vocab; ++token)
          std::memset(table + token * dim + begin, 0, size * sizeof(float));
      for (long row = 0; row < rows_; ++row) add(table + tokens_[row] * dim, row, false);
      if (positions != nullptr)
        for (long row = 0; row < rows_; ++row)
          add(positions + row % config.seq * dim, row, !gradient.accumulate && row < config.seq);
    });
  }

  void limit_forward(long first, long last) override {
    BELLOWS_CHECK(micro_batch == 1 || (first == 0 && last == config.seq));
    forward_first_ = first;
    forward_last_ = micro_batch == 1 ? last : rows_;
  }

  void logits(const void* head, const void* embedding, long row, std::span<float> out) override {
    const T* norm_unit = static_cast<const T*>(head);
    pack_forward({{&head_, output_.in(static_cast<const T*>(config.tied ? embedding : head))}});
    const long block = row / cut_.block, first = cut_.begin(block), rows = cut_.size(block);
    Workers::Lease worker(workers);
    for (long r = first; r < first + rows; ++r) final_norm_forward(norm_unit, r);
    Arena arena(*worker);
    const Cut& slices = head_.outputs();
    float* all = arena.take<float>(rows * slices.block);
    for (long s = 0; s < slices.count(); ++s) {
      head_.forward(*worker, rows, final_scaled_ + first * config.dim, all, s);
      std::copy_n(all + (row - first) * slices.size(s), slices.size(s), out.begin() + slices.begin(s));
    }
  }

  std::size_t bytes() const override {
    return memory_.bytes() + workers.bytes() + sums_.bytes() + head_sums_.bytes() + qkv_.bytes() + out_.bytes() +
           up_.bytes() + down_.bytes() + head_.bytes();
  }

 private:
  static constexpr bool kIsFloat = std::is_same_v<T, float>;
  static constexpr long kHeadSlice = 512;  // 64 rows of it are 128 KiB, at home in the second-level cache
  static constexpr long kColumns = 64;

  struct Packed {
    Linear<T>* linear;
    const T* weight;
  };

  // The most that any task takes from its worker's scratch.
  std::size_t scratch_bytes() const {
    const long r = cut_.block, dim = config.dim;
    const std::size_t narrow = Arena::padded<float>(r * dim), rounded = Arena::padded<T>(r * dim);
    const std::size_t wide = Arena::padded<float>(r * std::max(config.up_dim(), config.qkv_dim()));
    const std::size_t block = narrow + rounded + wide + Arena::padded<T>(r * config.hidden);
    return std::max(block, Arena::padded<float>(r * config.vocab) + narrow);
  }

  template <class F>
  void for_cut_blocks(long first_row, long last_row, F&& work) {
    const long first = first_row / cut_.block, last = (last_row + cut_.block - 1) / cut_.block;
    pool.run(last - first, [&](std::size_t task) {
      const long block = first + static_cast<long>(task);
      Workers::Lease worker(workers);
      work(*worker, cut_.begin(block), cut_.size(block), block);
    });
  }
  template <class F>
  void for_blocks(F&& work) {
    for_cut_blocks(0, rows_, work);
  }
  template <class F>
  void for_forward_blocks(F&& work) {
    for_cut_blocks(forward_first_, forward_last_, work);
  }
  template <class F>
  void for_forward_blocks(Kernel kernel, F&& work) {
    for_forward_blocks([&](Worker& worker, long first, long rows, long block) {
      const KernelScope scope(worker, kernel);
      work(worker, first, rows, block);
    });
  }

  void pack_forward(std::initializer_list<Packed> all) {
    pack(all, &Linear<T>::forward_packing_tasks, &Linear<T>::pack_forward);
  }
  void pack_backward(std::initializer_list<Packed> all) {
    pack(all, &Linear<T>::backward_packing_tasks, &Linear<T>::pack_backward);
  }
  void pack(std::initializer_list<Packed> all, long (Linear<T>::*count)() const,
            void (Linear<T>::*one)(Worker&, const T*, long)) {
    std::size_t tasks = 0;
    for (const Packed& p : all) tasks += (p.linear->*count)();
    pool.run(tasks, [&](std::size_t task) {
      Workers::Lease worker(workers);
      long slice = static_cast<long>(task);
      for (const Packed& p : all) {
        const long own = (p.linear->*count)();
        if (slice < own) return (p.linear->*one)(*worker, p.weight, slice);
        slice -= own;
      }
    });
  }

  void queries_keys_values(Worker& worker, const T* unit, Kept<T>& kept, long first, long rows) {
    const long width = config.qkv_dim(), dim = config.dim;
    Arena arena(worker);
    T* scaled = arena.take<T>(rows * dim);
    {
      const KernelScope scope(worker, Kernel::kNorm);
      const T *weight = block_.norm1.in(unit), *bias = block_.norm1_bias.in(unit);
      for (long r = 0; r < rows; ++r)
        kept.stats1[first + r] = norm_.forward(kept.input + (first + r) * dim, weight, bias, scaled + r * dim);
    }
    T* qkv = kept.qkv + first * width;
    float* product = float_rows(arena, qkv, rows * width);
    qkv_.forward(worker, rows, scaled, product);
    const KernelScope scope(worker, Kernel::kOther);
    const T* bias = block_.qkv_bias.in(unit);
    for (long r = 0; r < rows; ++r) {
      float* row = product + r * width;
      if (bias != nullptr)
        each_vec(width, [&](long i, auto n) { store(row + i, load(row + i, n) + load(bias + i, n), n); });
      if (rotary_) rotary_->forward((first + r) % config.seq, row, config.heads + config.kv_heads);
      if constexpr (!kIsFloat)
        each_vec(width, [&](long i, auto n) { store(qkv + r * width + i, load(row + i, n), n); });
    }
  }

  void attend(Kept<T>& kept) {
    const long heads = config.kv_heads, seq = config.seq;
    pool.run(micro_batch * heads, [&](std::size_t task) {
      Workers::Lease worker(workers);
      const long sequence = static_cast<long>(task) / heads, head = static_cast<long>(task) % heads,
                 first = sequence * seq;
      const bool all = micro_batch > 1;
      attention_->forward(*worker, kept.qkv + first * config.qkv_dim(), head, kept.attention + first * config.dim,
                          kept.lse + first * config.heads, all ? 0 : forward_first_, all ? seq : forward_last_);
    });
  }

  void feed_forward(Worker& worker, const T* unit, Kept<T>& kept, float* output, long first, long rows) {
    const long dim = config.dim, up = config.up_dim(), hidden = config.hidden;
    Arena arena(worker);
    T* scaled = arena.take<T>(rows * dim);
    T* activated = arena.take<T>(rows * hidden);
    float* narrow = arena.take<float>(rows * dim);
    T* kept_up = kept.up + first * up;
    float* wide = float_rows(arena, kept_up, rows * up);
    float* middle = kept.middle + first * dim;
    out_.forward(worker, rows, kept.attention + first * dim, narrow);
    {
      const KernelScope scope(worker, Kernel::kNorm);
      const T *weight = block_.norm2.in(unit), *bias = block_.norm2_bias.in(unit);
      for (long r = 0; r < rows; ++r) {
        add_to_stream(kept.input + (first + r) * dim, narrow + r * dim, block_.out_bias.in(unit), middle + r * dim);
        kept.stats2[first + r] = norm_.forward(middle + r * dim, weight, bias, scaled + r * dim);
      }
    }
    up_.forward(worker, rows, scaled, wide);
    {
      const KernelScope scope(worker, Kernel::kActivation);
      for (long r = 0; r < rows; ++r)
        activation_.forward(wide + r * up, block_.up_bias.in(unit), kept_up + r * up, activated + r * hidden);
    }
    down_.forward(worker, rows, activated, narrow);
    const KernelScope scope(worker, Kernel::kOther);
    for (long r = 0; r < rows; ++r)
      add_to_stream(middle + r * dim, narrow + r * dim, block_.down_bias.in(unit), output + (first + r) * dim);
  }

  void add_to_stream(const float* stream, const float* product, const T* bias, float* out) const {
    each_vec(config.dim, [&](long i, auto n) {
      const Vec sum = load(stream + i, n) + load(product + i, n);
      store(out + i, bias != nullptr ? sum + load(bias + i, n) : sum, n);
    });
  }

  RowStats final_norm_forward(const T* unit, long row) {
    return norm_.forward(final_ + row * config.dim, final_norm_.in(unit), final_norm_bias_.in(unit),
                         final_scaled_ + row * config.dim);
  }

  // Final norm, logits, loss, and the way back to the residual stream of one block of rows.
  void head_rows(Worker& worker, const T* unit, std::span<const std::int32_t> targets, bool backward, long first,
                 long rows, long block) {
    const long dim = config.dim, vocab = config.vocab;
    Arena arena(worker);
    std::vector<RowStats> stats(rows);
    {
      const KernelScope scope(worker, Kernel::kNorm);
      for (long r = 0; r < rows; ++r) stats[r] = final_norm_forward(unit, first + r);
    }
    // Slice after slice, each (rows, size of the slice).
    float* logits = arena.take<float>(rows * vocab);
    T* dlogits = dlogits_ + first * vocab;
    const Cut& slices = head_.outputs();
    std::vector<LossRow> losses(rows, LossRow(slices.count()));
    for (long r = 0; r < rows; ++r) losses[r].begin(targets[first + r]);
    for (long s = 0; s < slices.count(); ++s) {
      const long begin = slices.begin(s), size = slices.size(s);
      head_.forward(worker, rows, final_scaled_ + first * dim, logits + rows * begin, s);
      const KernelScope scope(worker, Kernel::kLoss);
      for (long r = 0; r < rows; ++r) losses[r].add_slice(s, logits + rows * begin + r * size, begin, size);
    }
    {
      const KernelScope scope(worker, Kernel::kLoss);
      for (long r = 0; r < rows; ++r) {
        row_loss_[first + r] = losses[r].finish();
        if (!backward) continue;
        for (long s = 0; s < slices.count(); ++s) {
          const long begin = slices.begin(s), size = slices.size(s);
          losses[r].gradient(s, logits + rows * begin + r * size, begin, size, dlogits + r * vocab + begin);
        }
      }
    }
    if (!backward) return;
    float* dscaled = arena.take<float>(rows * dim);
    head_.backward(worker, rows, dlogits, dscaled);
    const KernelScope scope(worker, Kernel::kNorm);
    head_sums_.clear(block);
    norm_backward(final_, stats.data(), final_norm_.in(unit), final_norm_bias_.in(unit), dscaled, nullptr, dout_,
                  head_sums_.at(block, final_norm_), head_sums_.at(block, final_norm_bias_), final_scaled_, first,
                  rows);
    round_rows(dout_, dout_rounded_, first, rows);
  }

  // `stats` of the block's first row on; x, residual, dx and y are whole buffers.
  void norm_backward(const float* x, const RowStats* stats, const T* weight, const T* bias, const float* dy,
                     const float* residual, float* dx, float* dweight, float* dbias, T* y, long first, long rows) {
    const long dim = config.dim;
    for (long r = 0; r < rows; ++r) {
      const long at = (first + r) * dim;
      norm_.backward(x + at, stats[r], weight, bias, dy + r * dim, residual != nullptr ? residual + at : nullptr,
                     dx + at, dweight, dbias, y + at);
    }
  }

  void feed_forward_backward(Worker& worker, const T* unit, Kept<T>& kept, long first, long rows, long block) {
    const long dim = config.dim, up = config.up_dim(), hidden = config.hidden;
    Arena arena(worker);
    float* wide = arena.take<float>(rows * hidden);
    float* narrow = arena.take<float>(rows * dim);
    sums_.clear(block);
    {
      const KernelScope scope(worker, Kernel::kOther);
      add_rows(dout_, first, rows, sums_.at(block, block_.down_bias));
    }
    down_.backward(worker, rows, operand(dout_, dout_rounded_) + first * dim, wide);
    {
      const KernelScope scope(worker, Kernel::kActivation);
      float* dbias = sums_.at(block, block_.up_bias);
      for (long r = 0; r < rows; ++r) {
        const long row = first + r;
        activation_.backward(kept.up + row * up, wide + r * hidden, activated_ + row * hidden, dup_ + row * up, dbias);
      }
    }
    up_.backward(worker, rows, dup_ + first * up, narrow);
    {
      const KernelScope scope(worker, Kernel::kNorm);
      norm_backward(kept.middle, kept.stats2 + first, block_.norm2.in(unit), block_.norm2_bias.in(unit), narrow, dout_,
                    dmiddle_, sums_.at(block, block_.norm2), sums_.at(block, block_.norm2_bias), scaled2_, first, rows);
      round_rows(dmiddle_, dmiddle_rounded_, first, rows);
      add_rows(dmiddle_, first, rows, sums_.at(block, block_.out_bias));
    }
    T* dattention = dattention_ + first * dim;
    float* product = kIsFloat ? reinterpret_cast<float*>(dattention) : narrow;
    out_.backward(worker, rows, operand(dmiddle_, dmiddle_rounded_) + first * dim, product);
    if constexpr (!kIsFloat)
      each_vec(rows * dim, [&](long i, auto n) { store(dattention + i, load(product + i, n), n); });
  }

  void attend_backward(Kept<T>& kept) {
    const long heads = config.kv_heads, seq = config.seq;
    pool.run(micro_batch * heads, [&](std::size_t task) {
      Workers::Lease worker(workers);
      const long sequence = static_cast<long>(task) / heads, head = static_cast<long>(task) % heads,
                 first = sequence * seq;
      attention_->backward(*worker, kept.qkv + first * config.qkv_dim(), kept.attention + first * config.dim,
                           kept.lse + first * config.heads, dattention_ + first * config.dim, head,
                           dqkv_ + first * config.qkv_dim());
    });
  }

  void queries_keys_values_backward(Worker& worker, const T* unit, Kept<T>& kept, long first, long rows, long block) {
    const long dim = config.dim, width = config.qkv_dim();
    Arena arena(worker);
    float* narrow = arena.take<float>(rows * dim);
    if (float* dbias = sums_.at(block, block_.qkv_bias)) {
      const KernelScope scope(worker, Kernel::kOther);
      for (long r = 0; r < rows; ++r) {
        const T* row = dqkv_ + (first + r) * width;
        each_vec(width, [&](long i, auto n) { store(dbias + i, load(dbias + i, n) + load(row + i, n), n); });
      }
    }
    qkv_.backward(worker, rows, dqkv_ + first * width, narrow);
    const KernelScope scope(worker, Kernel::kNorm);
    norm_backward(kept.input, kept.stats1 + first, block_.norm1.in(unit), block_.norm1_bias.in(unit), narrow, dmiddle_,
                  din_, sums_.at(block, block_.norm1), sums_.at(block, block_.norm1_bias), scaled1_, first, rows);
    round_rows(din_, din_rounded_, first, rows);
  }

  void weight_gradients(Kept<T>& kept, UnitGradient gradient) {
    struct Product {
      Linear<T>* linear;
      const Place* weight;
      const T *dy, *x;
    };
    const Product products[] = {{&up_, &block_.up, dup_, scaled2_},
                                {&qkv_, &block_.qkv, dqkv_, scaled1_},
                                {&down_, &block_.down, operand(dout_, dout_rounded_), activated_},
                                {&out_, &block_.out, operand(dmiddle_, dmiddle_rounded_), kept.attention}};
    std::size_t tasks = sums_.tasks();
    for (const Product& p : products) tasks += p.linear->gradient_tasks();
    pool.run(tasks, [&](std::size_t task) {
      Workers::Lease worker(workers);
      long slice = static_cast<long>(task);
      for (const Product& p : products) {
        if (slice < p.linear->gradient_tasks())
          return p.linear->gradient(*worker, slice, p.dy, p.x, p.weight->in(gradient.values), gradient.accumulate);
        slice -= p.linear->gradient_tasks();
      }
      const KernelScope scope(*worker, Kernel::kOther);
      sums_.reduce(slice, gradient);
    });
  }

  // Rows of a float32 result: in place where T is float32, else in the task's scratch.
  float* float_rows(Arena& arena, T* place, long count) const {
    if constexpr (kIsFloat)
      return place;
    else
      return arena.take<float>(count);
  }
  // A gradient of the residual stream as an operand of products: itself, or its rounded copy.
  const T* operand(const float* exact, const T* rounded) const {
    if constexpr (kIsFloat)
      return exact;
    else
      return rounded;
  }
  void round_rows(const float* from, T* to, long first, long rows) const {
    if constexpr (!kIsFloat) {
      const long begin = first * config.dim;
      each_vec(rows * config.dim, [&](long i, auto n) { store(to + begin + i, load(from + begin + i, n), n); });
    }
  }
  void add_rows(const float* from, long first, long rows, float* sum) const {
    if (sum == nullptr) return;
    for (long r = 0; r < rows; ++r) {
      const float* row = from + (first + r) * config.dim;
      each_vec(config.dim, [&](long i, auto n) { store(sum + i, load(sum + i, n) + load(row + i, n), n); });
    }
  }

  long rows_;
  Cut cut_;
  MatMulSet products_;
  NormKernel<T> norm_;
  ActivationKernel<T> activation_;
  std::optional<Rotary> rotary_;
  BlockPlaces block_;
  Place final_norm_, final_norm_bias_, output_, tokens_table_, positions_table_;
  Linear<T> qkv_, out_, up_, down_, head_;
  std::optional<AttentionKernel<T>> attention_;
  PartialSums sums_, head_sums_;

  Activations memory_;
  std::vector<Kept<T>> kept_;
  std::vector<double> row_loss_;
  std::vector<std::int32_t> tokens_;
  float* final_ = nullptr;     // (rows, dim) residual stream after the last block
  T* final_scaled_ = nullptr;  // (rows, dim) after the final norm
  T* dlogits_ = nullptr;       // (rows, vocab)
  // Gradients of the residual stream: after the block at work, between its halves, before it.
  float *dout_ = nullptr, *dmiddle_ = nullptr, *din_ = nullptr;
  T *dout_rounded_ = nullptr, *dmiddle_rounded_ = nullptr, *din_rounded_ = nullptr;
  // Of the block at work: recomputed inputs of products, and gradients of their results.
  T *scaled1_ = nullptr, *scaled2_ = nullptr, *activated_ = nullptr;
  T *dup_ = nullptr, *dqkv_ = nullptr, *dattention_ = nullptr;
  long forward_first_ = 0, forward_last_ = 0;
};

}  // namespace

GptModel::GptModel(const GptConfig& config, int micro_batch, DType precision, ThreadPool& pool) {
  if (micro_batch < 1) throw bellows::UserError("micro-batch must be at least 1, got " + std::to_string(micro_batch));
  if (precision == DType::kF32)
    impl_ = std::make_unique<Model<float>>(config, micro_batch, pool);
  else if (precision == DType::kBF16)
    impl_ = std::make_unique<Model<bf16>>(config, micro_batch, pool);
  else
    throw bellows::UserError("a model computes in fp32 or bf16, not in " + std::string(bellows::name_of(precision)));
}
GptModel::~GptModel() = default;

const GptConfig& GptModel::config() const { return impl_->config; }
const GptLayout& GptModel::layout() const { return impl_->layout; }
int GptModel::micro_batch() const { return impl_->micro_batch; }
std::size_t GptModel::bytes() const { return impl_->bytes(); }
Workers& GptModel::workers() { return impl_->workers; }

void GptModel::embed_forward(const void* embedding, std::span<const std::int32_t> tokens) {
  impl_->embed_forward(embedding, tokens);
}
void GptModel::block_forward(int layer, const void* block) { impl_->block_forward(layer, block); }
LossSum GptModel::head_forward(const void* head, const void* embedding, std::span<const std::int32_t> targets,
                               bool backward_follows) {
  return impl_->head_forward(head, embedding, targets, backward_follows);
}
void GptModel::head_backward(UnitGradient head, UnitGradient embedding) { impl_->head_backward(head, embedding); }
void GptModel::block_backward(int layer, const void* block, UnitGradient gradient) {
  impl_->block_backward(layer, block, gradient);
}
void GptModel::embed_backward(UnitGradient gradient) { impl_->embed_backward(gradient); }
void GptModel::limit_forward(long first, long last) { impl_->limit_forward(first, last); }
void GptModel::logits(const void* head, const void* embedding, long row, std::span<float> out) {
  impl_->logits(head, embedding, row, out);
}

}  // namespace gpt
