#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "bellows/base/mutex.h"
#include "bellows/comm/work.h"

namespace bellows {

/// Carries out collectives one after the other on a thread of its own.
class GpuQueue {
 public:
  GpuQueue() : thread_([this] { loop(); }) {}
  ~GpuQueue();
  GpuQueue(const GpuQueue&) = delete;
  GpuQueue& operator=(const GpuQueue&) = delete;

  /// Whatever `job` throws is thrown by the Work's wait.
  Work submit(std::function<void()> job);

 private:
  class Job;
  void loop();

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Job>> jobs_ BELLOWS_GUARDED_BY(mutex_);
  bool stop_ BELLOWS_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace bellows
