#include "checkpoint/step_directory.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

namespace bellows {
namespace {

constexpr char kPrefix[] = "step-";

long long step_of(const std::string& name) {
  if (name.rfind(kPrefix, 0) != 0 || name.size() == sizeof kPrefix - 1) return -1;
  const std::string digits = name.substr(sizeof kPrefix - 1);
  if (digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) return -1;
  return std::stoll(digits);
}

}  // namespace

std::string step_directory_name(long long step) {
  char text[40];
  std::snprintf(text, sizeof text, "%s%08lld", kPrefix, step);
  return text;
}

bool is_partial_name(const std::string& name) {
  return name.rfind(std::string(".") + kPrefix, 0) == 0 && name.size() > 8 &&
         name.compare(name.size() - 8, 8, ".partial") == 0;
}

std::vector<std::string> step_directories(const std::string& directory) {
  std::vector<std::pair<long long, std::string>> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    if (const long long step = step_of(it->path().filename().string()); step >= 0)
      found.push_back({step, it->path().string()});
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

}  // namespace bellows
