#pragma once
#include <string>
#include <vector>

#include "bellows/base/error.h"

namespace bellows {

/// How an operator on the same host finds a running job: a small file that only this user can read.
struct JobFile {
  std::string job;
  std::string address;
  std::string token;
  long pid = 0;                 ///< of the coordinator
  unsigned long long born = 0;  ///< its start time, so that a reused process number is not mistaken for it
  std::string command;
};

/// Where the files of this user's jobs are: $XDG_RUNTIME_DIR/bellows if that can be, else /tmp/bellows-<uid>.
/// Throws UserError if neither is a directory of this user's alone.
std::string job_directory();

/// Writes the file of this process' job (pid and born are filled in); removes it when it goes out of scope. If that
/// cannot be done it says so and the job runs all the same.
class PublishedJob {
 public:
  explicit PublishedJob(JobFile file);
  ~PublishedJob();

 private:
  std::string path_;
};

/// Jobs whose coordinator lives, by name. Files of dead ones are removed.
std::vector<JobFile> living_jobs();

/// The job called `name`, or the only one if `name` is empty.
Result<JobFile> find_job(const std::string& name);

}  // namespace bellows
