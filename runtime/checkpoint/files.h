#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bellows/base/error.h"

namespace bellows {

/// A whole file in memory, for manifests and headers. Fails naming the file; refuses more than `limit` bytes.
Result<std::string> read_file(const std::string& path, std::size_t limit);

/// A file being written: every write is complete or an error that names path and bytes. `finish` makes it durable.
class OutputFile {
 public:
  /// Throws UserError.
  explicit OutputFile(const std::string& path, std::uint64_t expected_bytes);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(std::span<const std::byte> bytes);
  void finish();  ///< fsync and close

 private:
  [[noreturn]] void fail(const char* doing);
  std::string path_;
  std::uint64_t expected_, written_ = 0;
  int fd_ = -1;
};

/// A file being read at offsets. Fails naming the file.
class InputFile {
 public:
  static Result<InputFile> open(const std::string& path);
  InputFile(InputFile&& other) noexcept;
  ~InputFile();
  std::uint64_t size() const { return size_; }
  /// Empty string, or what went wrong.
  std::string read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  InputFile() = default;
  std::string path_;
  std::uint64_t size_ = 0;
  int fd_ = -1;
};

/// Makes a directory's entries (a rename in it) durable. Throws UserError.
void sync_directory(const std::string& path);

}  // namespace bellows
