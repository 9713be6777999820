#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "bellows/base/check.h"
#include "bellows/base/clock.h"
#include "bellows/base/memory.h"

namespace gpt {

/// Where a worker's time goes, for the benchmark of a step.
enum class Kernel {
  kForwardProduct,
  kBackwardProduct,
  kGradientProduct,
  kPacking,
  kAttentionProduct,
  kSoftmax,
  kNorm,
  kActivation,
  kLoss,
  kOther,
  kCount
};
constexpr int kKernels = static_cast<int>(Kernel::kCount);
const char* name_of(Kernel kernel);

/// What one thread needs while it works on a task, made once: scratch memory for the task and for the matrix library.
struct Worker {
  int index = 0;
  bellows::HostMemory scratch;
  bellows::HostMemory library_scratch;
  bool timed = false;
  Kernel product_kind = Kernel::kForwardProduct;  ///< what its matrix products are charged to
  std::array<bellows::Nanos, kKernels> spent{};
};

/// Charges a stretch of a task to a kernel, where times are wanted.
class KernelScope {
 public:
  KernelScope(Worker& worker, Kernel kernel)
      : worker_(worker), kernel_(kernel), start_(worker.timed ? bellows::now_ns() : 0) {}
  ~KernelScope() {
    if (worker_.timed) worker_.spent[static_cast<int>(kernel_)] += bellows::now_ns() - start_;
  }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  Worker& worker_;
  Kernel kernel_;
  bellows::Nanos start_;
};

/// As many workers as threads can run tasks at once. A task leases one for its length; which one it gets never shows
/// in a result. Sizes are settled with `require` while a model is built, before any task runs.
class Workers {
 public:
  explicit Workers(int threads);

  int count() const { return static_cast<int>(workers_.size()); }
  void require_scratch(std::size_t bytes);
  void require_library_scratch(std::size_t bytes);
  std::size_t bytes() const;
  /// Starts (from zero) or stops the clocks of all workers. Between steps.
  void set_timed(bool timed);
  std::array<bellows::Nanos, kKernels> spent() const;  ///< of all workers together

  /// Keeps the matrix library's own threads out of the way as well: a task is one thread's work.
  class Lease {
   public:
    explicit Lease(Workers& workers);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Worker& operator*() const { return *worker_; }
    Worker* operator->() const { return worker_; }

   private:
    Workers& workers_;
    Worker* worker_;
    int library_threads_;
  };

 private:
  std::vector<Worker> workers_;
  std::unique_ptr<std::atomic<bool>[]> taken_;
};

/// Hands out pieces of a worker's scratch, from the front, each on a cache line of its own.
class Arena {
 public:
  explicit Arena(Worker& worker) : bytes_(worker.scratch.bytes()) {}
  template <class T>
  T* take(std::size_t count) {
    const std::size_t size = padded<T>(count);
    BELLOWS_CHECK_LE(used_ + size, bytes_.size());
    T* piece = reinterpret_cast<T*>(bytes_.data() + used_);
    used_ += size;
    return piece;
  }
  template <class T>
  static constexpr std::size_t padded(std::size_t count) {
    return (count * sizeof(T) + 127) / 64 * 64;
  }

 private:
  std::span<std::byte> bytes_;
  std::size_t used_ = 0;
};

}  // namespace gpt
