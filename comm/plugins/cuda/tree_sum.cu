// The tree sum of reduce-scatters on a device: one pass over memory, each thread with the element code of
// gpu/fold_element.h.
#include <algorithm>
#include <stdexcept>

#include "gpu/fold_element.h"
#include "launch.cuh"
#include "tree_sum.h"

namespace bellows {
namespace {

/// Travels as a kernel argument: programs of this size need no memory of their own on the device.
struct SmallTables {
  static constexpr int kMost = 32;
  struct Op {
    signed char left, right, slot, result;
  };
  struct Copy {
    signed char source, result;
  };
  const std::byte* sources[kMost];
  std::byte* results[kMost];
  Op ops[kMost];
  Copy copies[kMost];
  int op_count, copy_count;
};

/// The same in device memory.
struct LargeTables {
  const std::byte* const* sources;
  std::byte* const* results;
  const DeviceFold::Op* ops;
  const DeviceFold::Copy* copies;
  int op_count, copy_count;
};

template <class T>
constexpr int kPack = static_cast<int>(16 / sizeof(T));

template <class T, int kSlots, class Tables>
struct AnyTree {
  FoldCut cut;
  Tables tables;
  __device__ void operator()(std::size_t i) const {
    if (i < cut.packs)
      fold_at<T, kPack<T>, kSlots>(tables, cut.element(i));
    else
      fold_at<T, 1, kSlots>(tables, cut.element(i));
  }
};

template <class T, int kSources>
struct BalancedTree {
  FoldCut cut;
  const std::byte* sources[kSources];
  std::byte* result;
  template <int kWidth>
  __device__ void at(std::size_t element) const {
    store_floats<T, kWidth>(result, element, balanced_sum<T, kWidth, 0, kSources>(sources, element));
  }
  __device__ void operator()(std::size_t i) const {
    if (i < cut.packs)
      at<kPack<T>>(cut.element(i));
    else
      at<1>(cut.element(i));
  }
};

template <class T, int kSources>
void launch_balanced(void* stream, const FoldCut& cut, const std::byte* const* sources, std::byte* result) {
  BalancedTree<T, kSources> tree{cut, {}, result};
  std::copy(sources, sources + kSources, tree.sources);
  for_each(stream, cut.parts(), tree);
}

template <class T, class Tables>
void launch_any(void* stream, const FoldCut& cut, int slots, const Tables& tables) {
  if (slots <= 8)
    for_each(stream, cut.parts(), AnyTree<T, 8, Tables>{cut, tables});
  else
    for_each(stream, cut.parts(), AnyTree<T, kMaxFoldSlots, Tables>{cut, tables});
}

/// Memory of a stream's own order: freed behind what uses it.
class StreamMemory {
 public:
  StreamMemory(cudaStream_t stream, std::size_t bytes) : stream_(stream) {
    cuda_check(cudaMallocAsync(&memory_, bytes, stream), "cudaMallocAsync");
  }
  ~StreamMemory() { cudaFreeAsync(memory_, stream_); }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;
  /// Appends `count` values; `from` may be overwritten when this returns.
  template <class V>
  const V* append(const V* from, std::size_t count) {
    void* place = static_cast<std::byte*>(memory_) + used_;
    used_ += (count * sizeof(V) + 15) / 16 * 16;
    if (count > 0)  // from pageable memory: read before the call returns
      cuda_check(cudaMemcpyAsync(place, from, count * sizeof(V), cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
    return static_cast<const V*>(place);
  }

 private:
  const cudaStream_t stream_;
  void* memory_ = nullptr;
  std::size_t used_ = 0;
};

template <class T>
void launch_large(void* stream, const FoldCut& cut, const DeviceFold& fold, const std::byte* const* sources,
                  std::byte* const* results) {
  const auto s = static_cast<std::size_t>(fold.sources), r = static_cast<std::size_t>(fold.results);
  StreamMemory memory(static_cast<cudaStream_t>(stream), (s + r) * sizeof(void*) +
                                                             fold.ops.size() * sizeof(DeviceFold::Op) +
                                                             fold.copies.size() * sizeof(DeviceFold::Copy) + 64);
  LargeTables tables{};
  tables.sources = memory.append(sources, s);
  tables.results = memory.append(results, r);
  tables.ops = memory.append(fold.ops.data(), fold.ops.size());
  tables.copies = memory.append(fold.copies.data(), fold.copies.size());
  tables.op_count = static_cast<int>(fold.ops.size());
  tables.copy_count = static_cast<int>(fold.copies.size());
  launch_any<T>(stream, cut, fold.slots, tables);
}

template <class T>
void launch_small(void* stream, const FoldCut& cut, const DeviceFold& fold, const std::byte* const* sources,
                  std::byte* const* results) {
  SmallTables tables{};
  std::copy(sources, sources + fold.sources, tables.sources);
  std::copy(results, results + fold.results, tables.results);
  const auto small = [](int v) { return static_cast<signed char>(v); };
  for (const DeviceFold::Op& op : fold.ops)
    tables.ops[tables.op_count++] = {small(op.left), small(op.right), small(op.slot), small(op.result)};
  for (const DeviceFold::Copy& copy : fold.copies)
    tables.copies[tables.copy_count++] = {small(copy.source), small(copy.result)};
  launch_any<T>(stream, cut, fold.slots, tables);
}

template <class T>
void run(void* stream, const DeviceFold& fold, const std::byte* const* sources, std::byte* const* results,
         std::size_t count) {
  const FoldCut cut = cut_fold(sizeof(T), sources, fold.sources, results, fold.results, count);
  if (fold.balanced) {
    switch (fold.sources) {
      case 2:
        return launch_balanced<T, 2>(stream, cut, sources, results[0]);
      case 4:
        return launch_balanced<T, 4>(stream, cut, sources, results[0]);
      case 8:
        return launch_balanced<T, 8>(stream, cut, sources, results[0]);
      case 16:
        return launch_balanced<T, 16>(stream, cut, sources, results[0]);
      default:
        break;
    }
  }
  if (fold.sources <= SmallTables::kMost)
    launch_small<T>(stream, cut, fold, sources, results);
  else
    launch_large<T>(stream, cut, fold, sources, results);
}

}  // namespace

void cuda_tree_sum(Stream& stream, const DeviceFold& fold, DType dtype, const std::byte* const* sources,
                   std::byte* const* results, std::size_t count) {
  if (count == 0 || fold.sources == 0) return;
  cuda_check(cudaSetDevice(stream.device().index()), "cudaSetDevice");
  switch (dtype) {
    case DType::kF32:
      return run<float>(stream.native(), fold, sources, results, count);
    case DType::kBF16:
      return run<bf16>(stream.native(), fold, sources, results, count);
    case DType::kF16:
      return run<f16>(stream.native(), fold, sources, results, count);
    default:
      throw std::invalid_argument("cannot add elements of type " + std::string(name_of(dtype)));
  }
}

}  // namespace bellows
