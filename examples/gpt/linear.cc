#include "linear.h"

namespace gpt {
namespace {

constexpr long kGradientSlice = 256;

std::size_t whole_pages(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

}  // namespace

const MatMul& MatMulSet::get(const MatMulShape& shape) {
  auto at = products_.find(shape);
  if (at == products_.end()) at = products_.emplace(shape, MatMul(shape, workers_)).first;
  return at->second;
}

template <class T>
Linear<T>::Linear(MatMulSet& products, long out, long in, Cut rows, long output_slice)
    : in_(in),
      rows_(rows),
      outputs_{out, output_slice == 0 ? out : std::min(out, output_slice)},
      gradient_slices_{out, std::min(out, kGradientSlice)} {
  const auto type = bellows::dtype_of<T>();
  for (const bool tail : {false, true}) {
    const long m = tail ? rows_.tail() : rows_.block;
    for (const bool tail_slice : {false, true}) {
      const long n = tail_slice ? outputs_.tail() : outputs_.block;
      forward_[tail][tail_slice] = &products.get({.m = m,
                                                  .n = n,
                                                  .k = in,
                                                  .lda = in,
                                                  .ldb = in,
                                                  .ldc = n,
                                                  .b_transposed = true,
                                                  .packed = true,
                                                  .type = type});
    }
    backward_[tail] =
        &products.get({.m = m, .n = in, .k = out, .lda = out, .ldb = in, .ldc = in, .packed = true, .type = type});
  }
  for (const bool accumulate : {false, true})
    for (const bool tail_slice : {false, true}) {
      const long m = tail_slice ? gradient_slices_.tail() : gradient_slices_.block;
      gradient_[accumulate][tail_slice] = &products.get({.m = m,
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
  packed_forward_ = bellows::HostMemory(forward_stride_ * outputs_.count());
  packed_backward_ = bellows::HostMemory(backward_[0]->packed_bytes());
}

template <class T>
long Linear<T>::forward_packing_tasks() const {
  return outputs_.count() == 1 ? forward_[0][0]->packing().count() : outputs_.count();
}

template <class T>
long Linear<T>::backward_packing_tasks() const {
  return backward_[0]->packing().count();
}

template <class T>
void Linear<T>::pack_forward(Worker& worker, const T* weight, long task) {
  if (outputs_.count() == 1) return forward_[0][0]->pack(worker, weight, packed_forward_.data(), task);
  const MatMul& product = *forward_[0][outputs_.is_tail(task)];
  for (long part = 0; part < product.packing().count(); ++part)
    product.pack(worker, weight + outputs_.begin(task) * in_, packed_forward_.data() + task * forward_stride_, part);
}

template <class T>
void Linear<T>::pack_backward(Worker& worker, const T* weight, long task) {
  backward_[0]->pack(worker, weight, packed_backward_.data(), task);
}

template <class T>
void Linear<T>::forward(Worker& worker, long rows, const T* x, float* y, long slice) const {
  worker.product_kind = Kernel::kForwardProduct;
  forward_[rows != rows_.block][outputs_.is_tail(slice)]->run(worker, x,
                                                              packed_forward_.data() + slice * forward_stride_, y);
}

template <class T>
void Linear<T>::backward(Worker& worker, long rows, const T* dy, float* dx) const {
  worker.product_kind = Kernel::kBackwardProduct;
  backward_[rows != rows_.block]->run(worker, dy, packed_backward_.data(), dx);
}

template <class T>
void Linear<T>::gradient(Worker& worker, long slice, const T* dy, const T* x, float* dw, bool accumulate) const {
  worker.product_kind = Kernel::kGradientProduct;
  const long first = gradient_slices_.begin(slice);
  gradient_[accumulate][gradient_slices_.is_tail(slice)]->run(worker, dy + first, x, dw + first * in_);
}

template class Linear<float>;
template class Linear<bellows::bf16>;

}  // namespace gpt
