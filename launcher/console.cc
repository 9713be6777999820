#include "console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

namespace bellows {

int Console::width() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 100;
  return size.ws_col;
}

void Console::erase() {
  if (!status_.empty()) std::fputs("\r\033[K", stderr);
}

void Console::line(const std::string& text, bool to_stdout) {
  MutexLock lock(mutex_);
  erase();
  std::FILE* stream = to_stdout ? stdout : stderr;
  std::fprintf(stream, "%s\n", text.c_str());
  std::fflush(stream);
  if (!status_.empty()) std::fputs(status_.c_str(), stderr);
}

void Console::status(const std::string& text) {
  if (!redraws_) return;
  MutexLock lock(mutex_);
  erase();
  status_ = text;
  std::fputs(status_.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace bellows
