#pragma once
#include <map>
#include <vector>

#include "bellows/base/memory.h"
#include "cut.h"
#include "matmul.h"

namespace gpt {

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
/// `rows`. W is packed for the library once per use of its unit, by several tasks, and then serves every row block.
/// Layers of one shape share an object; its packed weights are those of the layer at work.
///
/// A very wide result may be cut in slices of outputs that are computed one at a time, so that each can be worked on
/// while it is in cache. dW = dy^T x is always cut in slices of outputs.
template <class T>
class Linear {
 public:
  /// `output_slice`: 0 for all outputs at once.
  Linear(MatMulSet& products, long out, long in, Cut rows, long output_slice = 0);

  const Cut& outputs() const { return outputs_; }
  long forward_packing_tasks() const;
  long backward_packing_tasks() const;
  void pack_forward(Worker& worker, const T* weight, long task);
  void pack_backward(Worker& worker, const T* weight, long task);

  /// y (rows, size of the slice), dense, of a row block with `rows` rows.
  void forward(Worker& worker, long rows, const T* x, float* y, long slice = 0) const;
  /// dx (rows, in), dense.
  void backward(Worker& worker, long rows, const T* dy, float* dx) const;

  long gradient_tasks() const { return gradient_slices_.count(); }
  /// One slice of dW (out, in) over all rows; overwrites, or adds.
  void gradient(Worker& worker, long slice, const T* dy, const T* x, float* dw, bool accumulate) const;

  std::size_t bytes() const { return packed_forward_.size() + packed_backward_.size(); }

 private:
  long in_;
  Cut rows_, outputs_, gradient_slices_;
  // By row block (whole or the last) and slice (whole or the last).
  const MatMul* forward_[2][2];
  const MatMul* backward_[2];
  const MatMul* gradient_[2][2];  // by accumulate and slice
  std::size_t forward_stride_;    // bytes from packed slice to packed slice
  bellows::HostMemory packed_forward_, packed_backward_;
};

}  // namespace gpt
