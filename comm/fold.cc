#include "fold.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace bellows {
namespace {

// ---- Sixteen elements as floats: the unit of all arithmetic here, for vector bodies and tails alike ----

using Vec = float __attribute__((vector_size(64)));
using Bits = std::uint32_t __attribute__((vector_size(64)));
constexpr std::size_t kWidth = 16;

template <class T>
struct Lane;

template <>
struct Lane<float> {
  static Vec load(const float* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static Vec round(Vec v) { return v; }
  static void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
  static void stream(float* p, Vec v) {
#if defined(__AVX512F__)
    _mm512_stream_ps(p, reinterpret_cast<__m512>(v));
#else
    store(p, v);
#endif
  }
};

template <>
struct Lane<bf16> {
  using Half = std::uint16_t __attribute__((vector_size(32)));
  static Vec load(const bf16* p) {
    Half h;
    std::memcpy(&h, p, sizeof h);
    return reinterpret_cast<Vec>(__builtin_convertvector(h, Bits) << 16);
  }
  // As bf16(float) of base/dtype.h, on sixteen at once; the low half of the result is zero.
  static Vec round(Vec v) {
    const Bits u = reinterpret_cast<Bits>(v);
    const Bits rounded = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
    const Bits quiet = (u & 0xffff0000u) | 0x400000u;
    const Bits nan = reinterpret_cast<Bits>((u & 0x7fffffffu) > 0x7f800000u);
    return reinterpret_cast<Vec>((nan & quiet) | (~nan & rounded));
  }
  static void store(bf16* p, Vec v) {
    const Half h = __builtin_convertvector(reinterpret_cast<Bits>(v) >> 16, Half);
    std::memcpy(static_cast<void*>(p), &h, sizeof h);
  }
  static void stream(bf16* p, Vec v) {
#if defined(__AVX512F__)
    const Half h = __builtin_convertvector(reinterpret_cast<Bits>(v) >> 16, Half);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(h));
#else
    store(p, v);
#endif
  }
};

template <>
struct Lane<f16> {
#if defined(__AVX512F__)
  static Vec load(const f16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  // The forms with a full mask: in g++ 12 the plain ones read a variable that nobody sets.
  static Vec widen(__m256i h) { return reinterpret_cast<Vec>(_mm512_maskz_cvtph_ps(0xffff, h)); }
  static __m256i half(Vec v) {
    return _mm512_maskz_cvtps_ph(0xffff, reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vec round(Vec v) { return widen(half(v)); }
  static void store(f16* p, Vec v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half(v)); }
  static void stream(f16* p, Vec v) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), half(v)); }
#else
  static Vec load(const f16* p) {
    Vec v;
    for (std::size_t i = 0; i < kWidth; ++i) v[i] = static_cast<float>(p[i]);
    return v;
  }
  static Vec round(Vec v) {
    for (std::size_t i = 0; i < kWidth; ++i) v[i] = static_cast<float>(f16(v[i]));
    return v;
  }
  static void store(f16* p, Vec v) {
    for (std::size_t i = 0; i < kWidth; ++i) p[i] = f16(v[i]);
  }
  static void stream(f16* p, Vec v) { store(p, v); }
#endif
};

template <class T>
Vec add(Vec a, Vec b) {
  return Lane<T>::round(a + b);
}

// A balanced tree over kSources neighbours, for the common case of aligned pieces: everything stays in registers.
template <class T, int kSources>
Vec balanced(const T* const* sources, std::size_t i) {
  if constexpr (kSources == 1)
    return Lane<T>::load(sources[0] + i);
  else
    return add<T>(balanced<T, kSources / 2>(sources, i), balanced<T, kSources / 2>(sources + kSources / 2, i));
}

template <class T, int kSources, bool kStream>
void run_balanced(const T* const* sources, T* result, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kWidth) {
    const Vec sum = balanced<T, kSources>(sources, i);
    if constexpr (kStream)
      Lane<T>::stream(result + i, sum);
    else
      Lane<T>::store(result + i, sum);
  }
}

// ---- Any other tree: block by block, steps in order, with temporaries that stay in the first-level cache ----

constexpr std::size_t kBlock = 1024;

template <class T>
struct Operand {
  const T* memory = nullptr;     // a source, as stored
  const float* block = nullptr;  // or the outcome of a step, rounded, as floats
  Vec at(std::size_t i) const { return memory ? Lane<T>::load(memory + i) : Lane<float>::load(block + i); }
};

template <class T>
class BlockFold {
 public:
  BlockFold(const FoldProgram& program, const T* const* sources, T* const* results)
      : program_(program),
        sources_(sources),
        results_(results),
        blocks_(program.steps.size() * kBlock),
        result_of_step_(program.steps.size(), -1) {
    for (std::size_t r = 0; r < program.results.size(); ++r)
      if (program.results[r] >= program.sources)
        result_of_step_[program.results[r] - program.sources] = static_cast<int>(r);
  }

  // `count` is a multiple of kWidth.
  void run(std::size_t count) {
    for (std::size_t begin = 0; begin < count; begin += kBlock) block(begin, std::min(kBlock, count - begin));
  }

 private:
  Operand<T> operand(int value, std::size_t begin) const {
    Operand<T> operand;
    if (value < program_.sources)
      operand.memory = sources_[value] + begin;
    else
      operand.block = &blocks_[(value - program_.sources) * kBlock];
    return operand;
  }

  void block(std::size_t begin, std::size_t count) {
    for (std::size_t s = 0; s < program_.steps.size(); ++s) {
      const Operand<T> left = operand(program_.steps[s].left, begin), right = operand(program_.steps[s].right, begin);
      if (const int r = result_of_step_[s]; r >= 0) {
        T* const out = results_[r] + begin;
        for (std::size_t i = 0; i < count; i += kWidth) Lane<T>::store(out + i, add<T>(left.at(i), right.at(i)));
      } else {
        float* const out = &blocks_[s * kBlock];
        for (std::size_t i = 0; i < count; i += kWidth) Lane<float>::store(out + i, add<T>(left.at(i), right.at(i)));
      }
    }
    // Sources that nothing was added to. Last: their places may be those of sources that the steps have read.
    for (std::size_t r = 0; r < program_.results.size(); ++r) {
      const int value = program_.results[r];
      if (value < program_.sources && sources_[value] != results_[r])
        std::memmove(static_cast<void*>(results_[r] + begin), sources_[value] + begin, count * sizeof(T));
    }
  }

  const FoldProgram& program_;
  const T* const* sources_;
  T* const* results_;
  std::vector<float> blocks_;
  std::vector<int> result_of_step_;
};

template <class T>
void run_whole(const FoldProgram& program, const T* const* sources, T* const* results, std::size_t count,
               bool streaming) {
  if (program.balanced) {
    switch (program.sources) {
      case 2:
        return streaming ? run_balanced<T, 2, true>(sources, results[0], count)
                         : run_balanced<T, 2, false>(sources, results[0], count);
      case 4:
        return streaming ? run_balanced<T, 4, true>(sources, results[0], count)
                         : run_balanced<T, 4, false>(sources, results[0], count);
      case 8:
        return streaming ? run_balanced<T, 8, true>(sources, results[0], count)
                         : run_balanced<T, 8, false>(sources, results[0], count);
      default:
        break;
    }
  }
  BlockFold<T>(program, sources, results).run(count);
}

template <class T>
void run_typed(const FoldProgram& program, const std::byte* const* source_bytes, std::byte* const* result_bytes,
               std::size_t count, bool streaming) {
  std::vector<const T*> sources;
  std::vector<T*> results;
  for (int s = 0; s < program.sources; ++s) sources.push_back(reinterpret_cast<const T*>(source_bytes[s]));
  for (std::size_t r = 0; r < program.results.size(); ++r) results.push_back(reinterpret_cast<T*>(result_bytes[r]));

  // Streaming stores want whole, aligned vectors: the elements before the first such place go the ordinary way.
  std::size_t head = 0;
  if (streaming) {
    const auto misplaced = reinterpret_cast<std::uintptr_t>(results[0]) % (kWidth * sizeof(T));
    head = misplaced == 0 ? 0 : (kWidth * sizeof(T) - misplaced) / sizeof(T);
    if (misplaced % sizeof(T) != 0 || results.size() != 1 || !program.balanced || count < head + kWidth) {
      streaming = false;
      head = 0;
    }
  }
  const auto small_piece = [&](std::size_t begin, std::size_t n) {  // n < kWidth: through padded copies
    if (n == 0) return;
    std::vector<T> padded((sources.size() + results.size()) * kWidth);
    std::vector<const T*> from(sources.size());
    std::vector<T*> to(results.size());
    for (std::size_t s = 0; s < sources.size(); ++s) {
      from[s] = &padded[s * kWidth];
      std::memcpy(static_cast<void*>(&padded[s * kWidth]), sources[s] + begin, n * sizeof(T));
    }
    for (std::size_t r = 0; r < results.size(); ++r) to[r] = &padded[(sources.size() + r) * kWidth];
    run_whole<T>(program, from.data(), to.data(), kWidth, false);
    for (std::size_t r = 0; r < results.size(); ++r)
      std::memcpy(static_cast<void*>(results[r] + begin), to[r], n * sizeof(T));
  };
  small_piece(0, head);
  const std::size_t body = (count - head) / kWidth * kWidth;
  if (body > 0) {
    std::vector<const T*> from(sources);
    std::vector<T*> to(results);
    for (auto& p : from) p += head;
    for (auto& p : to) p += head;
    run_whole<T>(program, from.data(), to.data(), body, streaming);
#if defined(__AVX512F__)
    if (streaming) _mm_sfence();
#endif
  }
  small_piece(head + body, count - head - body);
}

// True if the positions, whatever lanes they stand for, are added as a balanced tree of so many leaves.
bool is_balanced(const FoldProgram& program) {
  const int leaves = program.sources;
  if (program.results.size() != 1 || (leaves & (leaves - 1)) != 0) return false;
  std::vector<std::pair<int, int>> stack;  // value, leaves below it
  std::size_t step = 0;
  for (int leaf = 0; leaf < leaves; ++leaf) {
    stack.push_back({leaf, 1});
    while (stack.size() > 1 && stack[stack.size() - 2].second == stack.back().second) {
      const int left = stack[stack.size() - 2].first, right = stack.back().first;
      if (program.steps[step].left != left || program.steps[step].right != right) return false;
      stack.pop_back();
      stack.back() = {leaves + static_cast<int>(step++), 2 * stack.back().second};
    }
  }
  return true;
}

}  // namespace

FoldProgram make_fold(const std::vector<LaneSpan>& spans, bool complete) {
  FoldProgram program;
  program.sources = static_cast<int>(spans.size());
  struct Entry {
    int value;
    LaneSpan span;
  };
  std::vector<Entry> stack;
  const auto join_last_two = [&] {
    const Entry right = stack.back();
    stack.pop_back();
    Entry& left = stack.back();
    program.steps.push_back({left.value, right.value});
    left.value = program.sources + static_cast<int>(program.steps.size()) - 1;
    left.span.count = right.span.end() - left.span.first;
  };
  for (int i = 0; i < program.sources; ++i) {
    if (spans[i].count < 1 || (i > 0 && spans[i].first < spans[i - 1].end()))
      throw std::invalid_argument("partial sums overlap or are out of order at lane " + std::to_string(spans[i].first));
    stack.push_back({i, spans[i]});
    while (stack.size() > 1 && lane_siblings(stack[stack.size() - 2].span, stack.back().span)) join_last_two();
  }
  if (complete)
    while (stack.size() > 1) join_last_two();
  for (const Entry& entry : stack) {
    program.results.push_back(entry.value);
    program.spans.push_back(entry.span);
  }
  program.balanced = is_balanced(program);
  return program;
}

void run_fold(const FoldProgram& program, DType dtype, const std::byte* const* sources, std::byte* const* results,
              std::size_t count, bool streaming) {
  if (count == 0 || program.sources == 0) return;
  switch (dtype) {
    case DType::kF32:
      return run_typed<float>(program, sources, results, count, streaming);
    case DType::kBF16:
      return run_typed<bf16>(program, sources, results, count, streaming);
    case DType::kF16:
      return run_typed<f16>(program, sources, results, count, streaming);
    default:
      throw std::invalid_argument("cannot add elements of type " + std::string(name_of(dtype)));
  }
}

}  // namespace bellows
