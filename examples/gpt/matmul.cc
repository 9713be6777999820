#include "matmul.h"

#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "vec.h"

namespace gpt {
namespace {

constexpr long kPackedColumns = 192;  // of a part; a multiple of the library's blocks of 64, 48 or 16 columns

using bellows::bf16;
using bellows::DType;
using Dims = dnnl::memory::dims;
using Type = dnnl::memory::data_type;

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

dnnl::memory::desc matrix(long rows, long cols, long ld, bool transposed, Type type) {
  return {{rows, cols}, type, transposed ? Dims{1, ld} : Dims{ld, 1}};
}

// The matrix library's objects of one worker: they carry the pointers of a call, so no two calls may share them.
struct Call {
  dnnl::stream stream;
  dnnl::memory a, b, c, scratch;
};

// How one part of the columns of B is brought into the library's order.
struct Packing {
  dnnl::memory::desc from, to, scratch;
  dnnl::reorder reorder;
};

void widen(const bf16* from, long rows, long cols, long ld, float* to) {
  for (long r = 0; r < rows; ++r)
    each_vec(cols, [&](long i, auto n) { store(to + r * cols + i, load(from + r * ld + i, n), n); });
}

}  // namespace

struct MatMul::Impl {
  MatMulShape shape;
  MatMulShape inner;  // what the library computes: differs where bfloat16 is widened
  bool widened = false;
  dnnl::memory::desc a, b, c, library_b;
  dnnl::matmul::primitive_desc description;
  dnnl::matmul product;
  Cut packing;
  std::vector<Packing> parts;
  mutable std::vector<Call> calls;  // one per worker

  void describe() {
    const Type type = inner.type == DType::kBF16 ? Type::bf16 : Type::f32;
    a = matrix(inner.m, inner.k, inner.lda, inner.a_transposed, type);
    b = matrix(inner.k, inner.n, inner.ldb, inner.b_transposed, type);
    c = matrix(inner.m, inner.n, inner.ldc, false, Type::f32);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (inner.accumulate) {
      dnnl::post_ops add;
      add.append_sum(1.0f);
      attributes.set_post_ops(add);
    }
    const auto weights = inner.packed ? dnnl::memory::desc({inner.k, inner.n}, type, dnnl::memory::format_tag::any) : b;
    description = dnnl::matmul::primitive_desc({a, weights, c}, attributes, engine());
    product = dnnl::matmul(description);
    library_b = description.weights_desc();
  }

  // Returns the scratch that packing needs.
  std::size_t describe_packing() {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    packing = {inner.n, std::min(inner.n, kPackedColumns)};
    std::size_t scratch = 0;
    for (long i = 0; i < packing.count(); ++i) {
      const Dims size = {inner.k, packing.size(i)}, begin = {0, packing.begin(i)};
      const auto from = b.submemory_desc(size, begin), to = library_b.submemory_desc(size, begin);
      const dnnl::reorder::primitive_desc part(engine(), from, engine(), to, attributes);
      parts.push_back({from, to, part.scratchpad_desc(), dnnl::reorder(part)});
      scratch = std::max(scratch, parts.back().scratch.get_size());
    }
    return scratch;
  }

  // Rows and columns of an operand as they lie in memory.
  static long stored_rows(long rows, long cols, bool transposed) { return transposed ? cols : rows; }
  static long stored_cols(long rows, long cols, bool transposed) { return transposed ? rows : cols; }
  std::size_t widened_a() const { return Arena::padded<float>(shape.m * shape.k); }
  std::size_t widened_b() const { return Arena::padded<float>(shape.k * shape.n); }

  const float* widen_a(const void* a_from, std::byte* at) const {
    float* to = reinterpret_cast<float*>(at);
    widen(static_cast<const bf16*>(a_from), stored_rows(shape.m, shape.k, shape.a_transposed),
          stored_cols(shape.m, shape.k, shape.a_transposed), shape.lda, to);
    return to;
  }
  const float* widen_b(const void* b_from, std::byte* at) const {
    float* to = reinterpret_cast<float*>(at);
    widen(static_cast<const bf16*>(b_from), stored_rows(shape.k, shape.n, shape.b_transposed),
          stored_cols(shape.k, shape.n, shape.b_transposed), shape.ldb, to);
    return to;
  }
};

MatMul::MatMul(const MatMulShape& shape, Workers& workers) : impl_(std::make_unique<Impl>()) {
  const Workers::Lease one_thread(workers);  // the library bakes a thread count into what it prepares
  Impl& m = *impl_;
  m.shape = m.inner = shape;
  try {
    m.describe();
  } catch (const dnnl::error& error) {
    if (error.status != dnnl_unimplemented || shape.type != DType::kBF16) throw;
    m.widened = true;
    m.inner.type = DType::kF32;
    m.inner.lda = Impl::stored_cols(shape.m, shape.k, shape.a_transposed);
    m.inner.ldb = Impl::stored_cols(shape.k, shape.n, shape.b_transposed);
    m.describe();
  }
  std::size_t scratch = m.description.scratchpad_desc().get_size();
  if (shape.packed) scratch = std::max(scratch, m.describe_packing());
  if (m.widened) scratch += m.widened_a() + m.widened_b();
  workers.require_library_scratch(scratch + 4096);
  for (int i = 0; i < workers.count(); ++i)
    m.calls.push_back({
        dnnl::stream(engine()),
        dnnl::memory(m.a, engine(), DNNL_MEMORY_NONE),
        dnnl::memory(m.library_b, engine(), DNNL_MEMORY_NONE),
        dnnl::memory(m.c, engine(), DNNL_MEMORY_NONE),
        dnnl::memory(m.description.scratchpad_desc(), engine(), DNNL_MEMORY_NONE),
    });
}

MatMul::~MatMul() = default;
MatMul::MatMul(MatMul&&) noexcept = default;
const MatMulShape& MatMul::shape() const { return impl_->shape; }
std::size_t MatMul::packed_bytes() const { return impl_->library_b.get_size(); }

void MatMul::run(Worker& worker, const void* a, const void* b, float* c) const {
  const KernelScope scope(worker, worker.product_kind);
  const Impl& m = *impl_;
  Call& call = m.calls[worker.index];
  std::byte* scratch = worker.library_scratch.data();
  if (m.widened) {
    a = m.widen_a(a, scratch);
    scratch += m.widened_a();
    if (!m.shape.packed) b = m.widen_b(b, scratch);
    scratch += m.widened_b();
  }
  call.a.set_data_handle(const_cast<void*>(a));
  call.b.set_data_handle(const_cast<void*>(b));
  call.c.set_data_handle(c);
  call.scratch.set_data_handle(scratch);
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, call.a.get()},
                                       {DNNL_ARG_WEIGHTS, call.b.get()},
                                       {DNNL_ARG_DST, call.c.get()},
                                       {DNNL_ARG_SCRATCHPAD, call.scratch.get()}};
  dnnl::error::wrap_c_api(dnnl_primitive_execute(m.product.get(), call.stream.get(), 4, arguments),
                          "a matrix product failed");
}

const Cut& MatMul::packing() const { return impl_->packing; }

void MatMul::pack(Worker& worker, const void* b, void* packed, long part) const {
  const KernelScope scope(worker, Kernel::kPacking);
  const Impl& m = *impl_;
  const Packing& packing = m.parts[part];
  std::byte* scratch = worker.library_scratch.data();
  if (m.widened) {
    b = m.widen_b(b, scratch);
    scratch += m.widened_b();
  }
  const dnnl::memory from(packing.from, engine(), const_cast<void*>(b)), to(packing.to, engine(), packed);
  const dnnl::memory scratch_memory(packing.scratch, engine(), scratch);
  const dnnl_exec_arg_t arguments[] = {
      {DNNL_ARG_FROM, from.get()}, {DNNL_ARG_TO, to.get()}, {DNNL_ARG_SCRATCHPAD, scratch_memory.get()}};
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(packing.reorder.get(), m.calls[worker.index].stream.get(), 3, arguments),
      "packing weights failed");
}

}  // namespace gpt
