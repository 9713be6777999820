#include "linear.h"

namespace gpt {
namespace {

std::size_t whole_pages(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

}  // namespace

const MatMul& MatMulSet::get(const MatMulShape& shape) {
  auto at = products_.find(shape);
  if (at == products_.end()) at = products_.emplace(shape, MatMul(shape, workers_)).first;
  return at->second;
}

template <class T>
Linear<T>::Linear(MatMulSet& products, long out, long in, Cut rows, long forward_slice)
    : out_(out),
      in_(in),
      rows_(rows),
      forward_slices_{out, std::min(out, forward_slice)},
      backward_slices_{in, std::min(in, 192L)},
      gradient_slices_{out, std::min(out, 192L)} {
  const auto type = bellows::dtype_of<T>();
  for (const int tail_rows : {0, 1})
    for (const int tail_slice : {0, 1}) {
      const long m = tail_rows ? rows_.tail() : rows_.block;
      const long n = tail_slice ? forward_slices_.tail() : forward_slices_.block;
      forward_[tail_rows][tail_slice] = &products.get({.m = m,
                                                       .n = n,
                                                       .k = in,
                                                       .lda = in,
                                                       .ldb = in,
                                                       .ldc = out,
                                                       .b_transposed = true,
                                                       .packed = true,
                                                       .type = type});
      const long inputs = tail_slice ? backward_slices_.tail() : backward_slices_.block;
      backward_[tail_rows][tail_slice] = &products.get(
          {.m = m, .n = inputs, .k = out, .lda = out, .ldb = in, .ldc = in, .packed = true, .type = type});
      const long outputs = tail_slice ? gradient_slices_.tail() : gradient_slices_.block;
      const bool accumulate = tail_rows;
      gradient_[accumulate][tail_slice] = &products.get({.m = outputs,
                                                         .n = in,
                                                         .k = rows_.total,
                                                         .lda = out,
                                                         .ldb = in,
                                                         .ldc = in,
                                                         .a_transposed = true,
                                                         .accumulate = accumulate,
                                                         .type = type});
    }
  forward_stride_ = whole_pages(forward_[0][0]->packed_bytes());
  backward_stride_ = whole_pages(backward_[0][0]->packed_bytes());
  packed_forward_ = bellows::HostMemory(forward_stride_ * forward_slices_.count());
  packed_backward_ = bellows::HostMemory(backward_stride_ * backward_slices_.count());
}

template <class T>
void Linear<T>::pack_forward(Worker& worker, const T* weight, long slice) {
  pick(forward_, forward_slices_, rows_.block, slice)
      .pack(worker, weight + forward_slices_.begin(slice) * in_, packed_forward_.data() + slice * forward_stride_);
}

template <class T>
void Linear<T>::pack_backward(Worker& worker, const T* weight, long slice) {
  pick(backward_, backward_slices_, rows_.block, slice)
      .pack(worker, weight + backward_slices_.begin(slice), packed_backward_.data() + slice * backward_stride_);
}

template <class T>
void Linear<T>::forward_slice(Worker& worker, long rows, const T* x, float* y, long ldy, long slice) const {
  const MatMul& product = pick(forward_, forward_slices_, rows, slice);
  BELLOWS_CHECK_EQ(product.shape().ldc, ldy);
  product.run(worker, x, packed_forward_.data() + slice * forward_stride_, y);
}

template <class T>
void Linear<T>::forward(Worker& worker, long rows, const T* x, float* y, long ldy) const {
  for (long slice = 0; slice < forward_slices_.count(); ++slice)
    forward_slice(worker, rows, x, y + forward_slices_.begin(slice), ldy, slice);
}

template <class T>
void Linear<T>::backward(Worker& worker, long rows, const T* dy, float* dx) const {
  for (long slice = 0; slice < backward_slices_.count(); ++slice)
    pick(backward_, backward_slices_, rows, slice)
        .run(worker, dy, packed_backward_.data() + slice * backward_stride_, dx + backward_slices_.begin(slice));
}

template <class T>
void Linear<T>::gradient(Worker& worker, long slice, const T* dy, const T* x, float* dw, bool accumulate) const {
  const long first = gradient_slices_.begin(slice);
  gradient_[accumulate][gradient_slices_.size(slice) != gradient_slices_.block]->run(worker, dy + first, x,
                                                                                     dw + first * in_);
}

template class Linear<float>;
template class Linear<bellows::bf16>;

}  // namespace gpt
