#pragma once
#include <sys/types.h>

#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "bellows/comm/topology.h"
#include "bellows/elastic/job_client.h"

namespace bellows {

struct ChildOptions {
  std::vector<std::string> command;
  std::map<std::string, std::string> environment;  ///< on top of this process' own
  std::set<std::string> without;                   ///< variables of this process that the child does not get
  std::string log_file;                            ///< empty: none
  std::size_t log_limit = 64 << 20;                ///< bytes; what comes after is dropped, and said so
  CpuSet processors;         ///< that the process may run on, from its first instruction; empty: as this one
  bool bind_strict = false;  ///< if the kernel refuses them the process does not start; else it says so and runs
};

/// One rank's process: its own process group, killed by the kernel when the thread that started it ends. Its output is
/// read line by line. Not thread-safe: one thread starts it, polls its descriptors and reaps it.
class Child {
 public:
  /// A whole line of output, without its end.
  using LineSink = std::function<void(const std::string& line, bool error)>;

  Child(std::string member, const ChildOptions& options);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  const std::string& member() const { return member_; }
  pid_t pid() const { return pid_; }
  int exit_fd() const { return pidfd_; }  ///< readable once the process has ended
  int out_fd() const { return out_.fd; }  ///< -1 once closed
  int err_fd() const { return err_.fd; }

  /// Reads what is there.
  void read_output(const LineSink& sink);
  void signal_group(int signal);
  /// Ends what is left of its process group and takes its exit status. Call once, when exit_fd() is readable.
  ProcessExit reap(const LineSink& sink);

 private:
  struct Stream {
    int fd = -1;
    bool error = false;
    std::string partial;
  };
  void read_stream(Stream& stream, const LineSink& sink);
  void take_line(const std::string& line, bool error, const LineSink& sink);

  const std::string member_;
  pid_t pid_ = -1;
  int pidfd_ = -1;
  Stream out_, err_;
  std::deque<std::string> last_lines_;
  std::FILE* log_ = nullptr;
  std::size_t logged_ = 0;
  const std::size_t log_limit_;
};

}  // namespace bellows
