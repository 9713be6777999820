#include "job_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

extern char** environ;

namespace bellows::testing_tools {
namespace fs = std::filesystem;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
void pause_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

std::string fresh_folder() {
  char name[] = "/tmp/bellows-test-XXXXXX";
  if (!::mkdtemp(name)) std::abort();
  return name;
}

Process::Process(const std::vector<std::string>& command, const std::map<std::string, std::string>& environment) {
  static std::atomic<int> number = 0;
  mark_ = "JOB_TEST_MARK=" + std::to_string(::getpid()) + "." + std::to_string(++number) + ".";
  const std::string folder = fresh_folder();
  out_file_ = folder + "/out";
  err_file_ = folder + "/err";
  std::vector<std::string> words = command;
  const std::string built = std::string(BELLOWS_BIN_DIR) + "/" + words[0];
  if (fs::exists(built)) words[0] = built;

  std::vector<std::string> variables = {mark_};
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    // The tests' own surroundings must not decide; and the host's peak need not be measured each time.
    if (name.rfind("BELLOWS_", 0) != 0 && !environment.contains(name)) variables.push_back(text);
  }
  variables.push_back("BELLOWS_PEAK_F32=1e11");
  variables.push_back("BELLOWS_PEAK_BF16=1e11");
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& variable : variables) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  pid_ = ::fork();
  if (pid_ == 0) {
    const int out = ::open(out_file_.c_str(), O_CREAT | O_WRONLY, 0600);
    const int err = ::open(err_file_.c_str(), O_CREAT | O_WRONLY, 0600);
    ::dup2(out, 1);
    ::dup2(err, 2);
    environ = envp.data();
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
}

Process::~Process() {
  if (code_ < 0) {
    ::kill(pid_, SIGKILL);
    wait(10);
  }
  for (const pid_t pid : living_offspring()) ::kill(pid, SIGKILL);
  std::error_code ignored;
  fs::remove_all(fs::path(out_file_).parent_path(), ignored);
}

int Process::wait(double secs) {
  if (code_ >= 0) return code_;
  int status = 0;
  if (!eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, secs)) return -1;
  code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return code_;
}

std::string Process::out() const { return contents(out_file_); }
std::string Process::err() const { return contents(err_file_); }

std::vector<pid_t> Process::living_offspring() const {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || pid == pid_) continue;
    // A zombie has no environment any more, so it is not found here.
    if (contents(entry.path().string() + "/environ").find(mark_) != std::string::npos) found.push_back(pid);
  }
  return found;
}

}  // namespace bellows::testing_tools
