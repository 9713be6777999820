#pragma once
#include <string>

#include "bellows/base/mutex.h"

namespace bellows {

/// The person's screen: whole lines that scroll, and under them one status line that is redrawn in place (on a
/// terminal only). Thread-safe.
class Console {
 public:
  explicit Console(bool redraws) : redraws_(redraws) {}
  ~Console() { status(""); }

  void line(const std::string& text, bool to_stdout = false);
  /// Replaces the status line; empty takes it away. Does nothing where lines cannot be redrawn.
  void status(const std::string& text);
  bool redraws() const { return redraws_; }
  static int width();

 private:
  void erase() BELLOWS_REQUIRES(mutex_);

  const bool redraws_;
  Mutex mutex_;
  std::string status_ BELLOWS_GUARDED_BY(mutex_);
};

}  // namespace bellows
