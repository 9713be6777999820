#include "checkpoint/step_directory.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "bellows/base/log.h"
#include "checkpoint/files.h"

namespace fs = std::filesystem;

namespace bellows {
namespace {

constexpr std::string_view kPrefix = "step-", kReplaced = ".replaced", kPartial = ".partial";

// The step that a published checkpoint's name tells, or -1.
std::int64_t step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return -1;
  name.remove_prefix(kPrefix.size());
  if (name.ends_with(kReplaced)) name.remove_suffix(kReplaced.size());
  if (name.empty() || name.size() > 18 || name.find_first_not_of("0123456789") != name.npos) return -1;
  return std::stoll(std::string(name));
}

void remove_logged(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) log::warn("cannot remove '{}': {}", path.string(), error.message());
}

}  // namespace

std::string step_directory_name(std::int64_t step) {
  char text[40];
  std::snprintf(text, sizeof text, "step-%08lld", static_cast<long long>(step));
  return text;
}

std::string partial_name(std::int64_t step, std::uint64_t generation) {
  return "." + step_directory_name(step) + ".gen-" + std::to_string(generation) + std::string(kPartial);
}

bool is_partial_name(const std::string& name) { return name.starts_with(".step-") && name.ends_with(kPartial); }

Result<std::vector<std::string>> step_directories(const std::string& directory) {
  std::vector<std::tuple<std::int64_t, bool, std::string>> found;  // step, not replaced, path
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (const std::int64_t step = step_of(name); step >= 0)
      found.emplace_back(step, !name.ends_with(kReplaced), it->path().string());
  }
  if (error) return Result<std::vector<std::string>>::failure("cannot list '" + directory + "': " + error.message());
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> paths;
  for (auto& [step, whole, path] : found) paths.push_back(std::move(path));
  return paths;
}

void publish(const std::string& directory, const std::string& partial, std::int64_t step) {
  const std::string target = (fs::path(directory) / step_directory_name(step)).string();
  const auto fail = [&] {
    throw UserError("cannot rename '" + partial + "' to '" + target + "': " + std::strerror(errno));
  };
  sync_directory(partial);
  if (std::rename(partial.c_str(), target.c_str()) != 0) {
    // The step is there already (saved before a rollback). Both change places at once; where the file system cannot do
    // that, readers know the old one by its second name until the new one stands.
    if (errno != EEXIST && errno != ENOTEMPTY) fail();
    if (renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
      sync_directory(directory);
      remove_logged(partial);
    } else {
      const std::string old = target + std::string(kReplaced);
      remove_logged(old);
      if (std::rename(target.c_str(), old.c_str()) != 0) fail();
      if (std::rename(partial.c_str(), target.c_str()) != 0) fail();
      sync_directory(directory);
      remove_published(old);
    }
  }
  sync_directory(directory);
}

void remove_published(const std::string& path) {
  const fs::path from(path);
  fs::path hidden = from.parent_path() / ("." + from.filename().string() + ".removed" + std::string(kPartial));
  std::error_code error;
  fs::rename(from, hidden, error);
  if (error) {
    log::warn("cannot remove the old checkpoint '{}': {}", path, error.message());
    return;
  }
  remove_logged(hidden);
}

void remove_partials(const std::string& directory) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    if (is_partial_name(it->path().filename().string())) found.push_back(it->path());
  for (const fs::path& path : found) remove_logged(path);
}

}  // namespace bellows
