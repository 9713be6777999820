#include "guard.h"

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

namespace bellows {
namespace {

constexpr int kParentDied = SIGUSR1;

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, kParentDied}) sigaddset(&set, signal);
  return set;
}

/// pid -> parent of every process of this host, from /proc.
std::map<pid_t, pid_t> parents() {
  std::map<pid_t, pid_t> result;
  DIR* proc = ::opendir("/proc");
  if (!proc) return result;
  while (const dirent* entry = ::readdir(proc)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    char path[64], line[512] = {};
    std::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    std::FILE* file = std::fopen(path, "re");
    if (!file) continue;
    const std::size_t got = std::fread(line, 1, sizeof(line) - 1, file);
    std::fclose(file);
    // "pid (name) state parent ...": the name may hold anything, so look from its last parenthesis.
    const char* after = got > 0 ? std::strrchr(line, ')') : nullptr;
    char state;
    int parent;
    if (after && std::sscanf(after + 1, " %c %d", &state, &parent) == 2) result[pid] = parent;
  }
  ::closedir(proc);
  return result;
}

std::atomic<bool> is_ending = false;

}  // namespace

bool ending() { return is_ending; }

void kill_descendants() {
  is_ending = true;
  // New ones may appear while we look, so look again until there is none. Orphans of descendants are adopted by this
  // process (it is a subreaper), so nobody slips out of the tree.
  for (int round = 0; round < 200; ++round) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    const auto tree = parents();
    std::vector<pid_t> victims;
    for (const auto& [pid, parent] : tree) {
      pid_t up = parent;
      for (int depth = 0; up > 1 && up != ::getpid() && depth < 64; ++depth) {
        const auto it = tree.find(up);
        up = it == tree.end() ? 0 : it->second;
      }
      if (up == ::getpid()) victims.push_back(pid);
    }
    if (victims.empty()) return;
    for (const pid_t pid : victims) ::kill(pid, SIGKILL);
    ::usleep(10'000);
  }
}

void on_signals(std::function<void(int signal)> handler) {
  const sigset_t set = watched_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread([handler = std::move(handler), set] {
    while (true) {
      int signal = 0;
      if (sigwait(&set, &signal) != 0) continue;
      if (signal == kParentDied) {
        kill_descendants();
        ::_exit(128 + SIGKILL);
      }
      handler(signal);
    }
  }).detach();
}

int guarded(const std::function<int()>& body) {
  sigset_t set = watched_signals();
  sigaddset(&set, SIGCHLD);
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, &set, &before);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) {
    std::perror("bellows: cannot start a process");
    return 1;
  }
  if (child == 0) {
    ::setpgid(0, 0);  // a terminal's Ctrl-C comes once, through the parent
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    ::prctl(PR_SET_PDEATHSIG, kParentDied);
    if (::getppid() != parent) ::_exit(128 + SIGKILL);
    sigdelset(&set, SIGCHLD);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    const int code = body();
    std::fflush(nullptr);
    kill_descendants();
    ::_exit(code);
  }
  while (true) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0) continue;
    if (signal != SIGCHLD) {
      if (signal != kParentDied) ::kill(child, signal);
      continue;
    }
    int status = 0;
    pid_t ended;
    while ((ended = ::waitpid(-1, &status, WNOHANG)) > 0) {
      if (ended != child) continue;  // an orphan that came to us
      kill_descendants();
      if (WIFSIGNALED(status)) {
        std::fprintf(stderr, "bellows: ended by signal %d (%s)\n", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
        return 128 + WTERMSIG(status);
      }
      return WEXITSTATUS(status);
    }
  }
}

}  // namespace bellows
