#include "bellows/base/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "bellows/base/error.h"

namespace bellows {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Small buffers stay on 4 KiB pages; large ones are whole huge pages so that the kernel can use them.
std::size_t mapping_size(std::size_t bytes) { return round_up(bytes, bytes >= kHugePage ? kHugePage : 4096); }

[[noreturn]] void fail(const char* what, std::size_t bytes) {
  throw UserError(std::string(what) + " of " + human_bytes(static_cast<double>(bytes)) +
                  " failed: " + std::strerror(errno) + "; use a smaller model, more ranks or a higher ZeRO stage");
}

void populate(void* data, std::size_t bytes) {
  if (bytes >= kHugePage) madvise(data, bytes, MADV_HUGEPAGE);
  if (madvise(data, bytes, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) fail("populating memory", bytes);
}

// Shared memory gets huge pages only this way where the host's shmem_enabled says "never" (the usual setting). Touching
// one page of each first is enough, and quicker than populating small pages. False: this kernel cannot.
bool collapse(std::byte* data, std::size_t bytes) {
#if defined(MADV_COLLAPSE)
  constexpr int kCollapse = MADV_COLLAPSE;
#else
  constexpr int kCollapse = 25;  // Linux 6.1; Debian 12's headers are older than its kernel
#endif
  if (bytes < kHugePage) return false;
  for (std::size_t at = 0; at < bytes; at += kHugePage) data[at] = std::byte{0};
  return madvise(data, bytes, kCollapse) == 0;
}

// Reserves room for one more huge page and places the mapping on a 2 MiB boundary: unaligned mappings get none.
std::byte* map_aligned(std::size_t bytes, int flags, int fd) {
  const std::size_t slack = bytes >= kHugePage ? kHugePage : 0;
  void* reserved = mmap(nullptr, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) fail("reserving memory", bytes);
  const auto start = reinterpret_cast<std::uintptr_t>(reserved);
  const std::uintptr_t aligned = slack ? round_up(start, kHugePage) : start;
  if (aligned > start) munmap(reserved, aligned - start);
  const std::uintptr_t end = start + bytes + slack;
  if (aligned + bytes < end) munmap(reinterpret_cast<void*>(aligned + bytes), end - aligned - bytes);
  void* data = mmap(reinterpret_cast<void*>(aligned), bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
  if (data == MAP_FAILED) {
    const int saved = errno;
    munmap(reinterpret_cast<void*>(aligned), bytes);
    errno = saved;
    fail("mapping memory", bytes);
  }
  return static_cast<std::byte*>(data);
}

}  // namespace

HostMemory::HostMemory(std::size_t bytes) : size_(bytes), mapped_(mapping_size(bytes)) {
  if (bytes == 0) return;
  data_ = map_aligned(mapped_, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  populate(data_, mapped_);
}
HostMemory::HostMemory(HostMemory&& other) noexcept { *this = std::move(other); }
HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}
HostMemory::~HostMemory() {
  if (data_) munmap(data_, mapped_);
}

SharedMemory::SharedMemory(std::size_t bytes) : size_(bytes), mapped_(mapping_size(bytes)) {
  if (bytes == 0) return;
  fd_ = memfd_create("bellows", MFD_CLOEXEC);
  if (fd_ < 0) fail("creating shared memory", bytes);
  if (ftruncate(fd_, static_cast<off_t>(mapped_)) != 0) fail("sizing shared memory", bytes);
  data_ = map_aligned(mapped_, MAP_SHARED, fd_);
  if (!collapse(data_, mapped_)) populate(data_, mapped_);
}
SharedMemory SharedMemory::map(int fd, std::size_t bytes) {
  SharedMemory memory;
  memory.size_ = bytes;
  memory.mapped_ = mapping_size(bytes);
  memory.fd_ = fd;
  if (bytes == 0) return memory;
  memory.data_ = map_aligned(memory.mapped_, MAP_SHARED, fd);
  if (memory.mapped_ >= kHugePage) madvise(memory.data_, memory.mapped_, MADV_HUGEPAGE);
  madvise(memory.data_, memory.mapped_, MADV_POPULATE_READ);  // the pages exist: this only fills our page table
  return memory;
}
SharedMemory::SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }
SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  std::swap(fd_, other.fd_);
  return *this;
}
SharedMemory::~SharedMemory() {
  if (data_) munmap(data_, mapped_);
  if (fd_ >= 0) close(fd_);
}

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) bytes /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
  return text;
}

}  // namespace bellows
