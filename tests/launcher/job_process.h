#pragma once
#include <signal.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace bellows::testing_tools {

/// A command under test as a real process: its output in files, everything it starts recognisable by a mark in its
/// environment, and whatever is left of it ended with it.
class Process {
 public:
  /// `command` without a path is taken from the build's bin folder if it is there.
  explicit Process(const std::vector<std::string>& command, const std::map<std::string, std::string>& environment = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  /// Exit code, or 128 + signal; -1 if it has not ended after `secs`.
  int wait(double secs = 60);
  std::string out() const;
  std::string err() const;
  /// Processes that it started, directly or not, and that still live (zombies do not).
  std::vector<pid_t> living_offspring() const;

 private:
  std::string mark_;
  std::string out_file_, err_file_;
  pid_t pid_ = -1;
  int code_ = -1;
};

/// A fresh folder for one test.
std::string fresh_folder();
std::string contents(const std::string& path);
int count(const std::string& text, const std::string& part);
/// Polls until `condition()` is true; false after `secs`.
template <class Condition>
bool eventually(Condition condition, double secs = 60);
void pause_ms(int ms);
double now_s();

template <class Condition>
bool eventually(Condition condition, double secs) {
  const double end = now_s() + secs;
  while (!condition()) {
    if (now_s() > end) return false;
    pause_ms(10);
  }
  return true;
}

}  // namespace bellows::testing_tools
