#include "token.h"

#include <spdlog/fmt/fmt.h>
#include <sys/random.h>

#include <vector>

#include "bellows/base/error.h"

namespace bellows {

std::string random_hex(int digits) {
  std::vector<unsigned char> bytes(static_cast<std::size_t>(digits + 1) / 2);
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw UserError("this system gives no random numbers");
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text.substr(0, static_cast<std::size_t>(digits));
}

}  // namespace bellows
