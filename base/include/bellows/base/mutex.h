#pragma once
#include <condition_variable>
#include <mutex>

// Locks whose rules clang checks at compile time (-Wthread-safety); other compilers see plain locks.
#if defined(__clang__)
#define BELLOWS_ANNOTATE(x) __attribute__((x))
#else
#define BELLOWS_ANNOTATE(x)
#endif
#define BELLOWS_GUARDED_BY(m) BELLOWS_ANNOTATE(guarded_by(m))
#define BELLOWS_REQUIRES(...) BELLOWS_ANNOTATE(requires_capability(__VA_ARGS__))
#define BELLOWS_EXCLUDES(...) BELLOWS_ANNOTATE(locks_excluded(__VA_ARGS__))

namespace bellows {

class BELLOWS_ANNOTATE(capability("mutex")) Mutex {
 public:
  void lock() BELLOWS_ANNOTATE(acquire_capability()) { mutex_.lock(); }
  void unlock() BELLOWS_ANNOTATE(release_capability()) { mutex_.unlock(); }
  bool try_lock() BELLOWS_ANNOTATE(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

class BELLOWS_ANNOTATE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) BELLOWS_ANNOTATE(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() BELLOWS_ANNOTATE(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// Waits with a Mutex held. Callers loop over their condition.
class CondVar {
 public:
  void wait(Mutex& mutex) BELLOWS_REQUIRES(mutex) { cv_.wait(mutex); }
  template <class Duration>
  std::cv_status wait_for(Mutex& mutex, Duration duration) BELLOWS_REQUIRES(mutex) {
    return cv_.wait_for(mutex, duration);
  }
  void notify_one() { cv_.notify_one(); }
  void notify_all() { cv_.notify_all(); }

 private:
  std::condition_variable_any cv_;
};

}  // namespace bellows
