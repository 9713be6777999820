#include "job_file.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/base/log.h"

namespace bellows {
namespace fs = std::filesystem;
namespace {

/// Start time of a process in clock ticks since boot; 0 if there is no such process (or it is a zombie).
unsigned long long start_time(long pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const std::size_t after = line.rfind(')');
  if (after == std::string::npos) return 0;
  std::istringstream rest(line.substr(after + 1));
  std::string word;
  unsigned long long value = 0;
  for (int field = 3; field <= 22 && rest >> word; ++field) {
    if (field == 3 && word == "Z") return 0;
    if (field == 22) value = std::strtoull(word.c_str(), nullptr, 10);
  }
  return value;
}

}  // namespace

namespace {

/// Makes `path` if it is not there; empty if it cannot be used, with the reason in `*why`.
std::string own_directory(const std::string& path, std::string* why) {
  ::mkdir(path.c_str(), 0700);
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    *why = fmt::format("cannot make {}: {}", path, std::strerror(errno));
  } else if (!S_ISDIR(info.st_mode) || info.st_uid != ::getuid() || (info.st_mode & 0077) != 0) {
    *why = path + " is not a directory that only this user can use";
  } else {
    return path;
  }
  return "";
}

}  // namespace

std::string job_directory() {
  std::string why;
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime && *runtime) {
    // Often set for a session that is not there, as under sudo: then /tmp will do.
    const std::string path = own_directory(fmt::format("{}/bellows", runtime), &why);
    if (!path.empty()) return path;
  }
  const std::string path = own_directory(fmt::format("/tmp/bellows-{}", ::getuid()), &why);
  if (path.empty()) throw UserError(why + " (XDG_RUNTIME_DIR names another place)");
  return path;
}

PublishedJob::PublishedJob(JobFile file) {
  file.pid = ::getpid();
  file.born = start_time(file.pid);
  const nlohmann::json json = {{"job", file.job}, {"address", file.address}, {"token", file.token},
                               {"pid", file.pid}, {"born", file.born},       {"command", file.command}};
  const std::string text = json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  try {
    path_ = job_directory() + "/" + file.job + ".json";
    const std::string draft = path_ + ".new";
    const int fd = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    const bool written = fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    const int error = errno;
    if (fd >= 0) ::close(fd);
    if (!written) throw UserError(fmt::format("cannot write {}: {}", draft, std::strerror(error)));
    fs::rename(draft, path_);
  } catch (const std::exception& error) {
    log::warn("bellows ctl will need --coordinator {} and the token to find this job: {}", file.address, error.what());
  }
}

PublishedJob::~PublishedJob() {
  std::error_code ignored;
  fs::remove(path_, ignored);
}

std::vector<JobFile> living_jobs() {
  std::vector<JobFile> jobs;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(job_directory(), ignored)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream stream(entry.path());
    const auto json = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
    JobFile file;
    try {
      file = {json.at("job"), json.at("address"), json.at("token"),
              json.at("pid"), json.at("born"),    json.at("command")};
    } catch (const nlohmann::json::exception&) {
      file.pid = 0;  // not one of ours, or torn: as good as dead
    }
    if (file.pid > 0 && start_time(file.pid) == file.born && file.born != 0) {
      jobs.push_back(std::move(file));
    } else {
      fs::remove(entry.path(), ignored);
    }
  }
  std::sort(jobs.begin(), jobs.end(), [](const JobFile& a, const JobFile& b) { return a.job < b.job; });
  return jobs;
}

Result<JobFile> find_job(const std::string& name) {
  const std::vector<JobFile> jobs = living_jobs();
  std::string known;
  for (const JobFile& job : jobs) {
    if (job.job == name) return job;
    known += fmt::format("\n  --job {}   {}", job.job, job.command);
  }
  if (jobs.empty())
    return Result<JobFile>::failure(
        "no job of this user runs on this host (elsewhere: --coordinator ADDRESS --token TOKEN)");
  if (!name.empty())
    return Result<JobFile>::failure(fmt::format("no running job is called \"{}\"; there are:{}", name, known));
  if (jobs.size() > 1) return Result<JobFile>::failure("several jobs run here, choose one:" + known);
  return jobs.front();
}

}  // namespace bellows
