#pragma once
#include <cstddef>
#include <functional>
#include <memory>

namespace bellows {

/// `threads` workers including the caller. Work is cut into tasks by the caller, never by the thread count, so results
/// do not depend on how many threads run them. Idle workers spin for a moment, then sleep: ranks share cores.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  /// Calls task(i) for i in [0, tasks), each once, on any thread; returns when all are done.
  /// Called from one thread at a time. The first exception is rethrown here.
  void run(std::size_t tasks, const std::function<void(std::size_t)>& task);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bellows
