#include "bellows/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace bellows::detail {

void check_failed(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "bellows: broken invariant at %s:%d: %s\n", file, line, what.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace bellows::detail
