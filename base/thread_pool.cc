#include "bellows/base/thread_pool.h"

#include <atomic>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "bellows/base/mutex.h"

namespace bellows {

// One job at a time. A job is announced by bumping `epoch`; workers take task indices from `next` until none is left.
// `active` counts workers still inside the job, so the caller knows when its `task` may go out of scope.
struct ThreadPool::Impl {
  explicit Impl(int threads) {
    for (int i = 1; i < threads; ++i) workers.emplace_back([this] { loop(); });
  }
  ~Impl() {
    stopping.store(true);
    epoch.fetch_add(1);
    epoch.notify_all();
    for (auto& worker : workers) worker.join();
  }

  void loop() {
    std::uint32_t seen = 0;
    for (;;) {
      for (int spin = 0; spin < kSpins && epoch.load(std::memory_order_acquire) == seen; ++spin) __builtin_ia32_pause();
      epoch.wait(seen, std::memory_order_acquire);
      seen = epoch.load(std::memory_order_acquire);
      if (stopping.load()) return;
      drain();
      if (active.fetch_sub(1, std::memory_order_acq_rel) == 1) active.notify_one();
    }
  }

  void drain() {
    for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      try {
        (*task)(i);
      } catch (...) {
        MutexLock lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
  }

  static constexpr int kSpins = 2000;  // some microseconds: the gap between two products of a layer
  std::vector<std::thread> workers;
  std::atomic<std::uint32_t> epoch{0};
  std::atomic<std::uint32_t> active{0};
  std::atomic<std::size_t> next{0};
  std::size_t tasks = 0;
  const std::function<void(std::size_t)>* task = nullptr;
  std::atomic<bool> stopping{false};
  Mutex mutex;
  std::exception_ptr error BELLOWS_GUARDED_BY(mutex);
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>(threads < 1 ? 1 : threads)) {}
ThreadPool::~ThreadPool() = default;
int ThreadPool::threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::run(std::size_t tasks, const std::function<void(std::size_t)>& task) {
  if (impl_->workers.empty() || tasks <= 1) {
    for (std::size_t i = 0; i < tasks; ++i) task(i);
    return;
  }
  impl_->tasks = tasks;
  impl_->task = &task;
  impl_->next.store(0);
  impl_->active.store(static_cast<std::uint32_t>(impl_->workers.size()));
  impl_->epoch.fetch_add(1, std::memory_order_release);
  impl_->epoch.notify_all();
  impl_->drain();
  for (int spin = 0; spin < Impl::kSpins && impl_->active.load(std::memory_order_acquire) != 0; ++spin)
    __builtin_ia32_pause();
  for (std::uint32_t left; (left = impl_->active.load(std::memory_order_acquire)) != 0;) impl_->active.wait(left);
  MutexLock lock(impl_->mutex);
  if (impl_->error) std::rethrow_exception(std::exchange(impl_->error, nullptr));
}

}  // namespace bellows
