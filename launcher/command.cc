#include "command.h"

#include <cstdio>

#include "bellows/base/error.h"

namespace bellows {

int with_errors(const std::function<int()>& body) {
  try {
    return body();
  } catch (const UserError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

bool parse_words(Settings& settings, const std::vector<std::string>& argv) {
  std::vector<const char*> pointers;
  for (const std::string& word : argv) pointers.push_back(word.c_str());
  return settings.parse(static_cast<int>(pointers.size()), pointers.data());
}

}  // namespace bellows
