#include "workers.h"

#include <dlfcn.h>

namespace gpt {
namespace {

// The library's OpenMP runtime keeps a thread count per calling thread. Resolved at run time, so that this code needs
// no OpenMP of its own (clang's would be a second one in the process).
struct LibraryThreads {
  int (*get)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  void (*set)(int) = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  bool present() const { return get != nullptr && set != nullptr; }
};
const LibraryThreads& library_threads() {
  static const LibraryThreads threads;
  return threads;
}

}  // namespace

const char* name_of(Kernel kernel) {
  switch (kernel) {
    case Kernel::kForwardProduct:
      return "products of forward";
    case Kernel::kBackwardProduct:
      return "products of backward";
    case Kernel::kGradientProduct:
      return "products of gradients";
    case Kernel::kPacking:
      return "packing of weights";
    case Kernel::kAttentionProduct:
      return "products of attention";
    case Kernel::kSoftmax:
      return "softmax of attention";
    case Kernel::kNorm:
      return "norms";
    case Kernel::kActivation:
      return "activation";
    case Kernel::kLoss:
      return "loss";
    case Kernel::kOther:
      return "other";
    case Kernel::kCount:
      break;
  }
  return "?";
}

Workers::Workers(int threads) : workers_(threads), taken_(new std::atomic<bool>[threads] {}) {
  for (int i = 0; i < threads; ++i) workers_[i].index = i;
}

void Workers::require_scratch(std::size_t bytes) {
  for (auto& worker : workers_)
    if (worker.scratch.size() < bytes) worker.scratch = bellows::HostMemory(bytes);
}

void Workers::require_library_scratch(std::size_t bytes) {
  for (auto& worker : workers_)
    if (worker.library_scratch.size() < bytes) worker.library_scratch = bellows::HostMemory(bytes);
}

std::size_t Workers::bytes() const {
  std::size_t total = 0;
  for (const auto& worker : workers_) total += worker.scratch.size() + worker.library_scratch.size();
  return total;
}

void Workers::set_timed(bool timed) {
  for (auto& worker : workers_) {
    worker.timed = timed;
    worker.spent = {};
  }
}

std::array<bellows::Nanos, kKernels> Workers::spent() const {
  std::array<bellows::Nanos, kKernels> sum{};
  for (const auto& worker : workers_)
    for (int k = 0; k < kKernels; ++k) sum[k] += worker.spent[k];
  return sum;
}

Workers::Lease::Lease(Workers& workers) : workers_(workers), worker_(nullptr), library_threads_(1) {
  for (int i = 0; i < workers.count() && worker_ == nullptr; ++i)
    if (!workers.taken_[i].exchange(true, std::memory_order_acquire)) worker_ = &workers.workers_[i];
  BELLOWS_CHECK(worker_ != nullptr);  // never more leases than threads
  if (library_threads().present()) {
    library_threads_ = library_threads().get();
    if (library_threads_ != 1) library_threads().set(1);
  }
}

Workers::Lease::~Lease() {
  if (library_threads_ != 1) library_threads().set(library_threads_);
  workers_.taken_[worker_->index].store(false, std::memory_order_release);
}

}  // namespace gpt
