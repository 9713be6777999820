#pragma once
#include <algorithm>
#include <map>
#include <vector>

#include "bellows/base/memory.h"
#include "matmul.h"

namespace gpt {

/// [0, total) cut in blocks of one size, the last one shorter.
struct Cut {
  long total = 0;
  long block = 1;
  long count() const { return (total + block - 1) / block; }
  long begin(long i) const { return i * block; }
  long size(long i) const { return std::min(block, total - i * block); }
  long tail() const { return total - (count() - 1) * block; }  ///< size of the last
};

/// Every product of a model, prepared once and shared by all that have the same shape.
class MatMulSet {
 public:
  explicit MatMulSet(Workers& workers) : workers_(workers) {}
  const MatMul& get(const MatMulShape& shape);
  Workers& workers() { return workers_; }

 private:
  Workers& workers_;
  std::map<MatMulShape, MatMul> products_;
};

/// y = x W^T with W (out, in), and its two gradients, as tasks of one thread each. Rows (tokens) come in the blocks of
/// `rows`; W is cut in slices that are packed for the library once per use of the unit and then serve every row block:
/// slices of outputs for forward, of inputs for dx = dy W. dW = dy^T x is cut in slices of outputs.
/// Layers of one shape share an object; its packed weights are those of the layer at work.
template <class T>
class Linear {
 public:
  Linear(MatMulSet& products, long out, long in, Cut rows, long forward_slice = 192);

  const Cut& outputs() const { return forward_slices_; }
  const Cut& inputs() const { return backward_slices_; }
  void pack_forward(Worker& worker, const T* weight, long slice);
  void pack_backward(Worker& worker, const T* weight, long slice);

  /// y (rows, out) of a row block with `rows` rows.
  void forward(Worker& worker, long rows, const T* x, float* y, long ldy) const;
  /// Only the outputs of one slice; y points at the slice's first column.
  void forward_slice(Worker& worker, long rows, const T* x, float* y, long ldy, long slice) const;
  /// dx (rows, in), dense.
  void backward(Worker& worker, long rows, const T* dy, float* dx) const;

  long gradient_tasks() const { return gradient_slices_.count(); }
  /// One slice of dW (out, in) over all rows; overwrites, or adds.
  void gradient(Worker& worker, long slice, const T* dy, const T* x, float* dw, bool accumulate) const;

  std::size_t bytes() const { return packed_forward_.size() + packed_backward_.size(); }

 private:
  const MatMul& pick(const MatMul* const (&four)[2][2], const Cut& slices, long rows, long slice) const {
    return *four[rows != rows_.block][slices.size(slice) != slices.block];
  }

  long out_, in_;
  Cut rows_, forward_slices_, backward_slices_, gradient_slices_;
  // By row block (whole or the last) and slice (whole or the last).
  const MatMul* forward_[2][2];
  const MatMul* backward_[2][2];
  const MatMul* gradient_[2][2];                  // by accumulate and slice
  std::size_t forward_stride_, backward_stride_;  // bytes from packed slice to packed slice
  bellows::HostMemory packed_forward_, packed_backward_;
};

}  // namespace gpt
