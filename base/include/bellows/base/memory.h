#pragma once
#include <cstddef>
#include <span>
#include <string>

namespace bellows {

/// Page-aligned zeroed memory, huge pages where the host gives them, populated once at construction: on virtual
/// machines the first touch of a page costs more than copying it many times. Move-only; freed on destruction.
class HostMemory {
 public:
  HostMemory() = default;
  /// Throws UserError naming the size if the host has not that much.
  explicit HostMemory(std::size_t bytes);
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;
  ~HostMemory();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t mapped_ = 0;
};

/// Memory that other processes of this host can map: an anonymous memfd, so a killed process leaves nothing behind.
/// Lives as long as its owner, longer than any generation; communicators expose windows of it to peers.
class SharedMemory {
 public:
  SharedMemory() = default;
  explicit SharedMemory(std::size_t bytes);
  /// Maps a peer's segment given an open descriptor of it (taken over).
  static SharedMemory map(int fd, std::size_t bytes);
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  int fd() const { return fd_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t mapped_ = 0;
  int fd_ = -1;
};

std::string human_bytes(double bytes);  ///< "12.3 MiB"

}  // namespace bellows
