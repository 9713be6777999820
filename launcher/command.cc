#include "command.h"

namespace bellows {

bool parse_words(Settings& settings, const std::vector<std::string>& argv) {
  std::vector<const char*> pointers;
  for (const std::string& word : argv) pointers.push_back(word.c_str());
  return settings.parse(static_cast<int>(pointers.size()), pointers.data());
}

}  // namespace bellows
