#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "fold.h"
#include "fold_vectors.h"

namespace bellows {
namespace {

// ---- A balanced tree over neighbours, for the common case of aligned pieces: everything stays in registers ----

template <class T, std::size_t kSources>
Vec balanced(const T* const* sources, std::size_t i) {
  if constexpr (kSources == 1)
    return Lane<T>::load(sources[0] + i);
  else
    return add<T>(balanced<T, kSources / 2>(sources, i), balanced<T, kSources / 2>(sources + kSources / 2, i));
}

// Pointers as local values: behind an array that the stores might change they would be loaded anew for every vector.
template <class P, std::size_t kCount>
std::array<P, kCount> local(const P* pointers) {
  std::array<P, kCount> values;
  std::copy_n(pointers, kCount, values.begin());
  return values;
}

template <class T, std::size_t kSources>
void run_cached(const T* const* source_list, T* result, std::size_t count) {
  const auto sources = local<const T*, kSources>(source_list);
  for (std::size_t i = 0; i < count; i += kWidth) Lane<T>::store(result + i, balanced<T, kSources>(sources.data(), i));
}

constexpr std::size_t kAheadBytes = 4096;  // as far ahead as main memory is away

template <class T, std::size_t kSources, std::size_t kPlaces, bool kAhead>
void run_streaming(const T* const* source_list, T* const* place_list, std::size_t count) {
  const auto sources = local<const T*, kSources>(source_list);
  const auto places = local<T*, kPlaces>(place_list);
  for (std::size_t i = 0; i < count; i += kWidth) {
    if constexpr (kAhead)
      for (const T* const source : sources)
        __builtin_prefetch(reinterpret_cast<const std::byte*>(source + i) + kAheadBytes);
    const Vec sum = balanced<T, kSources>(sources.data(), i);
    for (T* const place : places) Lane<T>::stream(place + i, sum);
  }
}

/// False if there is no such loop for this tree and so many places.
template <class T, std::size_t kSources>
bool run_balanced_streaming(const T* const* sources, const std::vector<T*>& places, std::size_t count, bool ahead) {
  switch (places.size()) {
    case 1:
      ahead ? run_streaming<T, kSources, 1, true>(sources, places.data(), count)
            : run_streaming<T, kSources, 1, false>(sources, places.data(), count);
      return true;
    case 2:
      ahead ? run_streaming<T, kSources, 2, true>(sources, places.data(), count)
            : run_streaming<T, kSources, 2, false>(sources, places.data(), count);
      return true;
    case 4:
      ahead ? run_streaming<T, kSources, 4, true>(sources, places.data(), count)
            : run_streaming<T, kSources, 4, false>(sources, places.data(), count);
      return true;
    default:
      return false;
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
  BlockFold(const FoldProgram& program, const T* const* sources, const std::vector<T*>& results)
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
  /// The same for a program of one result that is a sum, which goes past the caches to all `places`.
  void stream(const std::vector<T*>& places, std::size_t count) {
    alignas(64) std::array<T, kBlock> sum;
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const std::size_t n = std::min(kBlock, count - begin);
      results_ = {sum.data()};
      results_begin_ = begin;
      block(begin, n);
      for (T* const place : places)
        for (std::size_t i = 0; i < n; i += kWidth) Lane<T>::stream(place + begin + i, Lane<T>::load(&sum[i]));
    }
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
        T* const out = results_[r] + begin - results_begin_;
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
  std::vector<T*> results_;
  std::size_t results_begin_ = 0;  // the element that stands where `results_` point
  std::vector<float> blocks_;
  std::vector<int> result_of_step_;
};

// ---- Both ----

template <class T>
void run_whole(const FoldProgram& program, const T* const* sources, const std::vector<T*>& results, std::size_t count) {
  if (program.balanced) {
    switch (program.sources) {
      case 2:
        return run_cached<T, 2>(sources, results[0], count);
      case 4:
        return run_cached<T, 4>(sources, results[0], count);
      case 8:
        return run_cached<T, 8>(sources, results[0], count);
      default:
        break;
    }
  }
  BlockFold<T>(program, sources, results).run(count);
}

template <class T>
void run_whole_streaming(const FoldProgram& program, const T* const* sources, const std::vector<T*>& places,
                         std::size_t count, bool ahead) {
  if (program.balanced) {
    switch (program.sources) {
      case 2:
        if (run_balanced_streaming<T, 2>(sources, places, count, ahead)) return;
        break;
      case 4:
        if (run_balanced_streaming<T, 4>(sources, places, count, ahead)) return;
        break;
      case 8:
        if (run_balanced_streaming<T, 8>(sources, places, count, ahead)) return;
        break;
      default:
        break;
    }
  }
  BlockFold<T>(program, sources, {nullptr}).stream(places, count);
}

template <class T>
class TypedFold {
 public:
  TypedFold(const FoldProgram& program, const std::byte* const* sources, std::byte* const* results,
            const FoldStores& stores)
      : program_(program) {
    sources_.reserve(static_cast<std::size_t>(program.sources));
    for (int s = 0; s < program.sources; ++s) sources_.push_back(reinterpret_cast<const T*>(sources[s]));
    for (std::size_t r = 0; r < program.results.size(); ++r) results_.push_back(reinterpret_cast<T*>(results[r]));
    for (std::byte* const copy : stores.copies) copies_.push_back(reinterpret_cast<T*>(copy));
  }

  void run(std::size_t count, bool streaming, bool ahead) {
    // Streaming stores want whole, aligned vectors: the elements before the first such place go the ordinary way.
    std::size_t head = 0;
    streaming = streaming && program_.results.size() == 1 && !program_.steps.empty() && first_aligned(&head) &&
                count >= head + kWidth;
    if (!streaming) head = 0;
    small_piece(0, head);
    const std::size_t body = (count - head) / kWidth * kWidth;
    if (body > 0 && streaming) {
      std::vector<T*> places = moved(results_, head);
      for (T* const copy : copies_) places.push_back(copy + head);
      run_whole_streaming<T>(program_, moved(sources_, head).data(), places, body, ahead);
      finish_streaming();
    } else if (body > 0) {
      run_whole<T>(program_, sources_.data(), results_, body);
      for (T* const copy : copies_) std::memcpy(static_cast<void*>(copy), results_[0], body * sizeof(T));
    }
    small_piece(head + body, count - head - body);
  }

 private:
  template <class P>
  static std::vector<P> moved(std::vector<P> pointers, std::size_t by) {
    for (P& p : pointers) p += by;
    return pointers;
  }

  /// The first element at which every place of the result is aligned; false if there is none.
  bool first_aligned(std::size_t* head) const {
    constexpr std::size_t kVector = kWidth * sizeof(T);
    const auto misplaced = [](const T* p) { return reinterpret_cast<std::uintptr_t>(p) % kVector; };
    const std::size_t off = misplaced(results_[0]);
    *head = off == 0 ? 0 : (kVector - off) / sizeof(T);
    return off % sizeof(T) == 0 &&
           std::all_of(copies_.begin(), copies_.end(), [&](const T* copy) { return misplaced(copy) == off; });
  }

  void small_piece(std::size_t begin, std::size_t n) {  // n < kWidth: through padded copies
    if (n == 0) return;
    std::vector<T> padded((sources_.size() + results_.size()) * kWidth);
    std::vector<const T*> from(sources_.size());
    std::vector<T*> to(results_.size());
    for (std::size_t s = 0; s < sources_.size(); ++s) {
      from[s] = &padded[s * kWidth];
      std::memcpy(static_cast<void*>(&padded[s * kWidth]), sources_[s] + begin, n * sizeof(T));
    }
    for (std::size_t r = 0; r < results_.size(); ++r) to[r] = &padded[(sources_.size() + r) * kWidth];
    run_whole<T>(program_, from.data(), to, kWidth);
    for (std::size_t r = 0; r < results_.size(); ++r)
      std::memcpy(static_cast<void*>(results_[r] + begin), to[r], n * sizeof(T));
    for (T* const copy : copies_) std::memcpy(static_cast<void*>(copy + begin), to[0], n * sizeof(T));
  }

  const FoldProgram& program_;
  std::vector<const T*> sources_;
  std::vector<T*> results_;
  std::vector<T*> copies_;
};

}  // namespace

void run_fold(const FoldProgram& program, DType dtype, const std::byte* const* sources, std::byte* const* results,
              std::size_t count, const FoldStores& stores) {
  if (count == 0 || program.sources == 0) return;
  switch (dtype) {
    case DType::kF32:
      return TypedFold<float>(program, sources, results, stores).run(count, stores.streaming, stores.ahead);
    case DType::kBF16:
      return TypedFold<bf16>(program, sources, results, stores).run(count, stores.streaming, stores.ahead);
    case DType::kF16:
      return TypedFold<f16>(program, sources, results, stores).run(count, stores.streaming, stores.ahead);
    default:
      throw std::invalid_argument("cannot add elements of type " + std::string(name_of(dtype)));
  }
}

}  // namespace bellows
