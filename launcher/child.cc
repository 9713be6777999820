#include "child.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "bellows/base/error.h"

extern char** environ;

namespace bellows {
namespace {

constexpr std::size_t kLastLines = 20;
constexpr std::size_t kLongestKeptLine = 500;
constexpr std::size_t kLongestLine = 1 << 16;  // longer ones are cut in pieces
constexpr int kCannotStart = 127;

struct Pipe {
  int read = -1;
  int write = -1;
  Pipe() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) throw UserError(fmt::format("cannot make a pipe: {}", ::strerror(errno)));
    read = fds[0];
    write = fds[1];
  }
};

/// Processors as the kernel wants them. Made before the fork: it allocates.
class Mask {
 public:
  explicit Mask(const CpuSet& cpus) {
    if (cpus.empty()) return;
    words_.resize(static_cast<std::size_t>(cpus.back()) / kBits + 1);
    for (const int cpu : cpus)
      words_[static_cast<std::size_t>(cpu) / kBits] |= 1ul << (static_cast<unsigned>(cpu) % kBits);
  }
  /// Safe between fork and exec. 0 or an errno. What threads and memory the program makes comes after it.
  int apply() const {
    if (words_.empty()) return 0;
    const auto* set = reinterpret_cast<const cpu_set_t*>(words_.data());
    return ::sched_setaffinity(0, words_.size() * sizeof(words_[0]), set) == 0 ? 0 : errno;
  }

 private:
  static constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> words_;
};

/// What kept the program from starting, sent by the new process.
struct Failure {
  int error = 0;
  bool binding = false;
};

[[noreturn]] void fail(int pipe, Failure failure) {
  [[maybe_unused]] const auto written = ::write(pipe, &failure, sizeof(failure));
  ::_exit(kCannotStart);
}

/// Between fork and exec only calls that are safe there: the parent has threads.
[[noreturn]] void become(char* const argv[], char* const envp[], const Mask& mask, bool strict, int out, int err,
                         int failure, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kCannotStart);  // it died before the line above
  const int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, 0);
  ::dup2(out, 1);
  ::dup2(err, 2);
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (const int error = mask.apply()) {
    if (strict) fail(failure, {error, true});
    constexpr char kText[] = "bellows: the kernel refused the processors of this rank, it runs unbound\n";
    [[maybe_unused]] const auto written = ::write(2, kText, sizeof(kText) - 1);
  }
  ::syscall(SYS_close_range, 3u, ~0u, static_cast<unsigned>(CLOSE_RANGE_CLOEXEC));
  environ = const_cast<char**>(envp);
  ::execvp(argv[0], argv);
  fail(failure, {errno, false});
}

std::vector<std::string> environment_of(const ChildOptions& options) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    if (!options.environment.contains(name) && !options.without.contains(name)) all.push_back(text);
  }
  for (const auto& [name, value] : options.environment) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

Child::Child(std::string member, const ChildOptions& options)
    : member_(std::move(member)), log_limit_(options.log_limit) {
  std::vector<std::string> command = options.command;
  std::vector<std::string> environment = environment_of(options);
  const std::vector<char*> argv = pointers(command);
  const std::vector<char*> envp = pointers(environment);
  const Mask mask(options.processors);
  Pipe out, err, failure;
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0)
    become(argv.data(), envp.data(), mask, options.bind_strict, out.write, err.write, failure.write, parent);
  const int fork_error = errno;
  ::close(out.write);
  ::close(err.write);
  ::close(failure.write);
  if (pid_ < 0) throw UserError(fmt::format("cannot start a process: {}", ::strerror(fork_error)));
  ::setpgid(pid_, pid_);                                          // both sides: whoever is first
  pidfd_ = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));  // close-on-exec by itself
  if (pidfd_ < 0) throw UserError(fmt::format("this kernel has no pidfd_open: {}", ::strerror(errno)));
  ::fcntl(out.read, F_SETFL, O_NONBLOCK);
  ::fcntl(err.read, F_SETFL, O_NONBLOCK);
  out_ = {out.read, false, ""};
  err_ = {err.read, true, ""};
  if (!options.log_file.empty()) log_ = std::fopen(options.log_file.c_str(), "we");

  Failure failed;
  const auto got = ::read(failure.read, &failed, sizeof(failed));  // ends at once when exec succeeds
  ::close(failure.read);
  if (got == sizeof(failed))
    last_lines_.push_back(failed.binding
                              ? fmt::format("cannot bind it to the processors {}: {}", cpu_list(options.processors),
                                            ::strerror(failed.error))
                              : fmt::format("cannot start {}: {}", options.command.front(), ::strerror(failed.error)));
}

Child::~Child() {
  for (const int fd : {pidfd_, out_.fd, err_.fd}) {
    if (fd >= 0) ::close(fd);
  }
  if (log_) std::fclose(log_);
}

void Child::read_output(const LineSink& sink) {
  read_stream(out_, sink);
  read_stream(err_, sink);
}

void Child::read_stream(Stream& stream, const LineSink& sink) {
  char buffer[1 << 14];
  while (stream.fd >= 0) {
    const ssize_t got = ::read(stream.fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return;  // nothing there now
    if (got == 0) {
      ::close(stream.fd);
      stream.fd = -1;
      if (!stream.partial.empty()) take_line(stream.partial, stream.error, sink);
      stream.partial.clear();
      return;
    }
    stream.partial.append(buffer, static_cast<std::size_t>(got));
    std::size_t begin = 0;
    for (std::size_t end; (end = stream.partial.find('\n', begin)) != std::string::npos; begin = end + 1)
      take_line(stream.partial.substr(begin, end - begin), stream.error, sink);
    stream.partial.erase(0, begin);
    if (stream.partial.size() > kLongestLine) {
      take_line(stream.partial, stream.error, sink);
      stream.partial.clear();
    }
  }
}

void Child::take_line(const std::string& line, bool error, const LineSink& sink) {
  last_lines_.push_back(line.substr(0, kLongestKeptLine));
  if (last_lines_.size() > kLastLines) last_lines_.pop_front();
  if (log_ && logged_ <= log_limit_) {
    logged_ += line.size() + 1;
    if (logged_ <= log_limit_) {
      std::fprintf(log_, "%s\n", line.c_str());
    } else {
      std::fprintf(log_, "(the limit of %zu bytes is reached, the rest is dropped)\n", log_limit_);
    }
    std::fflush(log_);
  }
  if (sink) sink(line, error);
}

void Child::signal_group(int signal) { ::kill(-pid_, signal); }

ProcessExit Child::reap(const LineSink& sink) {
  // While the dead leader is not reaped its number cannot be given to a stranger: safe to end its helpers now.
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  signal_group(SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  read_output(sink);
  for (Stream* stream : {&out_, &err_}) {
    if (!stream->partial.empty()) take_line(stream->partial, stream->error, sink);
    stream->partial.clear();
  }
  ProcessExit exit;
  exit.member = member_;
  if (WIFSIGNALED(status)) exit.signal = WTERMSIG(status);
  if (WIFEXITED(status)) exit.code = WEXITSTATUS(status);
  for (const std::string& line : last_lines_) exit.last_lines += line + "\n";
  return exit;
}

}  // namespace bellows
