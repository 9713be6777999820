#include "checkpoint/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "bellows/base/memory.h"

namespace bellows {
namespace {

std::string reason() { return std::strerror(errno); }

}  // namespace

Result<std::string> read_file(const std::string& path, std::size_t limit) {
  auto file = InputFile::open(path);
  if (!file) return Result<std::string>::failure(file.error());
  if (file.value().size() > limit)
    return Result<std::string>::failure("'" + path + "' has " + std::to_string(file.value().size()) +
                                        " bytes, more than the " + std::to_string(limit) + " that it can have");
  std::string text(file.value().size(), '\0');
  const std::string error = file.value().read(0, std::as_writable_bytes(std::span(text)));
  if (!error.empty()) return Result<std::string>::failure(error);
  return text;
}

OutputFile::OutputFile(const std::string& path, std::uint64_t expected_bytes) : path_(path), expected_(expected_bytes) {
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd_ < 0) throw UserError("cannot create '" + path + "': " + reason());
}
OutputFile::~OutputFile() {
  if (fd_ >= 0) close(fd_);
}

void OutputFile::fail(const char* doing) {
  throw UserError(std::string(doing) + " '" + path_ + "': " + reason() + " after " +
                  human_bytes(static_cast<double>(written_)) + " of " + human_bytes(static_cast<double>(expected_)) +
                  " (" + std::to_string(expected_) + " bytes are needed)");
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), std::min<std::size_t>(bytes.size(), std::size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("writing");
    written_ += static_cast<std::uint64_t>(n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void OutputFile::finish() {
  if (fsync(fd_) != 0) fail("syncing");
  if (close(std::exchange(fd_, -1)) != 0) fail("closing");
}

Result<InputFile> InputFile::open(const std::string& path) {
  InputFile file;
  file.path_ = path;
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  struct stat info {};
  if (file.fd_ < 0 || fstat(file.fd_, &info) != 0)
    return Result<InputFile>::failure("cannot read '" + path + "': " + reason());
  if (!S_ISREG(info.st_mode)) return Result<InputFile>::failure("'" + path + "' is not a regular file");
  file.size_ = static_cast<std::uint64_t>(info.st_size);
  return file;
}
InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), size_(other.size_), fd_(std::exchange(other.fd_, -1)) {}
InputFile::~InputFile() {
  if (fd_ >= 0) close(fd_);
}

std::string InputFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > size_ || out.size() > size_ - offset)
    return "'" + path_ + "' is truncated: it has " + std::to_string(size_) + " bytes, " +
           std::to_string(offset + out.size()) + " are needed";
  while (!out.empty()) {
    const ssize_t n =
        pread(fd_, out.data(), std::min<std::size_t>(out.size(), std::size_t{1} << 30), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return "reading '" + path_ + "': " + reason();
    if (n == 0) return "'" + path_ + "' became shorter while it was read";
    offset += static_cast<std::uint64_t>(n);
    out = out.subspan(static_cast<std::size_t>(n));
  }
  return "";
}

void sync_directory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw UserError("cannot open directory '" + path + "': " + reason());
  const bool ok = fsync(fd) == 0 || errno == EINVAL;  // some file systems know no fsync of a directory
  const int error = errno;
  close(fd);
  if (!ok) throw UserError("syncing directory '" + path + "': " + std::strerror(error));
}

}  // namespace bellows
