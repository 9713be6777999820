#include "gpu/gpu_queue.h"

#include <exception>

namespace bellows {

class GpuQueue::Job final : public Work::State {
 public:
  explicit Job(std::function<void()> body) : body_(std::move(body)) {}

  void run() {
    std::exception_ptr error;
    try {
      body_();
    } catch (...) {
      error = std::current_exception();
    }
    body_ = nullptr;
    MutexLock lock(mutex_);
    error_ = error;
    finished_at_ = now_ns();
    changed_.notify_all();
  }

  bool done() const override {
    MutexLock lock(mutex_);
    return finished_at_ != 0;
  }
  void wait() override {
    MutexLock lock(mutex_);
    while (finished_at_ == 0) changed_.wait(mutex_);
    if (error_) std::rethrow_exception(error_);
  }
  Nanos finished_at() const override {
    MutexLock lock(mutex_);
    return finished_at_;
  }

 private:
  std::function<void()> body_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::exception_ptr error_ BELLOWS_GUARDED_BY(mutex_);
  Nanos finished_at_ BELLOWS_GUARDED_BY(mutex_) = 0;
};

GpuQueue::~GpuQueue() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

Work GpuQueue::submit(std::function<void()> body) {
  auto job = std::make_shared<Job>(std::move(body));
  MutexLock lock(mutex_);
  jobs_.push_back(job);
  changed_.notify_all();
  return Work(job);
}

void GpuQueue::loop() {
  while (true) {
    std::shared_ptr<Job> job;
    {
      MutexLock lock(mutex_);
      while (jobs_.empty() && !stop_) changed_.wait(mutex_);
      if (jobs_.empty()) return;
      job = jobs_.front();
      jobs_.pop_front();
    }
    job->run();
  }
}

}  // namespace bellows
