#pragma once
#include <atomic>
#include <string>
#include <thread>

#include "bellows/elastic/coordinator.h"
#include "console.h"

namespace bellows {

/// "[=====>     ] step 120/500  loss 2.3140  12.3k tok/s  MFU 41.2 %  4 ranks  1:23 left"
std::string progress_line(const JobStatus& status, double seconds_left, int width);
/// What a person is told about an event; empty: nothing.
std::string event_line(const Event& event);
/// The event as one line of JSON.
std::string event_json(const Event& event);

/// Shows a job while it runs: a bar or a line every few seconds, and each event that matters; writes all events to a
/// file if one is named. A thread of its own until destruction, which waits for the last events.
class Progress {
 public:
  enum class Style { kBar, kPlain, kNone };
  Progress(Coordinator& coordinator, Console& console, Style style, const std::string& events_file);
  ~Progress();

 private:
  void show();

  Coordinator& coordinator_;  // outlives this: both belong to the run command
  Console& console_;
  const Style style_;
  std::FILE* events_ = nullptr;
  std::atomic<bool> closing_ = false;
  std::thread thread_;
};

}  // namespace bellows
