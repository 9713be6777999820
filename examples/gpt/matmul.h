#pragma once
#include <compare>
#include <cstddef>
#include <memory>

#include "bellows/base/dtype.h"
#include "cut.h"
#include "workers.h"

namespace gpt {

/// C (m, n) = A (m, k) B (k, n), or C += A B: sums and C in float32 whatever A and B are. Row-major; `ld` is the
/// distance from row to row, `transposed` says that the operand is stored the other way round.
struct MatMulShape {
  long m = 0, n = 0, k = 0;
  long lda = 0, ldb = 0, ldc = 0;
  bool a_transposed = false, b_transposed = false;
  bool packed = false;  ///< B is brought into the library's own order first, by pack()
  bool accumulate = false;
  bellows::DType type = bellows::DType::kF32;  ///< of A and B: float32 or bfloat16
  auto operator<=>(const MatMulShape&) const = default;
};

/// A product of one shape on the matrix library, prepared once. Runs on the calling thread alone and always sums in
/// the same order. Where the processor has no bfloat16 products the operands are widened to float32 first.
class MatMul {
 public:
  MatMul(const MatMulShape& shape, Workers& workers);
  ~MatMul();
  MatMul(MatMul&&) noexcept;

  /// `b` is the plain operand, or what pack() wrote if the shape says packed. Safe from several workers at once.
  void run(Worker& worker, const void* a, const void* b, float* c) const;
  /// Packs columns packing().begin(part) and on. Parts may be packed by several workers at once.
  void pack(Worker& worker, const void* b, void* packed, long part) const;
  const Cut& packing() const;
  std::size_t packed_bytes() const;
  const MatMulShape& shape() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpt
