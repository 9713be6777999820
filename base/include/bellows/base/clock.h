#pragma once
#include <chrono>
#include <cstdint>

namespace bellows {

/// Nanoseconds of a steady clock whose zero means nothing.
using Nanos = std::int64_t;

inline Nanos now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
inline double seconds(Nanos ns) { return static_cast<double>(ns) * 1e-9; }
inline Nanos from_seconds(double s) { return static_cast<Nanos>(s * 1e9); }

/// Every wait has one. A point on the steady clock.
class Deadline {
 public:
  static Deadline after(double secs) { return Deadline(now_ns() + from_seconds(secs)); }
  static Deadline at(Nanos when) { return Deadline(when); }
  bool passed() const { return now_ns() >= when_; }
  Nanos when() const { return when_; }
  Nanos remaining() const { return when_ - now_ns(); }

 private:
  explicit Deadline(Nanos when) : when_(when) {}
  Nanos when_;
};

/// A clock that tests set by hand; decisions take the time as an argument, so few things need this.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanos now() const { return now_ns(); }
};

class ManualClock final : public Clock {
 public:
  Nanos now() const override { return now_; }
  void advance(double secs) { now_ += from_seconds(secs); }

 private:
  Nanos now_ = 0;
};

}  // namespace bellows
