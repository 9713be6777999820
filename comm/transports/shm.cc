#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "transports/transport.h"

namespace bellows {
namespace {

int pidfd_open(std::int64_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)); }

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string link_of(const char* path) {
  char text[256];
  const ssize_t n = readlink(path, text, sizeof text);
  return n > 0 ? std::string(text, static_cast<std::size_t>(n)) : std::string();
}

// Field 22 of /proc/PID/stat; the name in field 2 may hold anything, so counting starts behind its last ')'.
std::uint64_t start_time_of(std::int64_t pid) {
  const std::string line = first_line("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t close = line.rfind(')');
  if (close == std::string::npos) return 0;
  std::istringstream rest(line.substr(close + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) rest >> field;
  return std::strtoull(field.c_str(), nullptr, 10);
}

/// The life of another process, as a descriptor: readable once it has ended, whoever has its pid by then.
class ProcessWatch {
 public:
  ProcessWatch() = default;
  explicit ProcessWatch(std::int64_t pid) : fd_(pidfd_open(pid)) {}
  ProcessWatch(ProcessWatch&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ProcessWatch& operator=(ProcessWatch&&) = delete;
  ~ProcessWatch() {
    if (fd_ >= 0) close(fd_);
  }
  bool valid() const { return fd_ >= 0; }
  bool ended() const {
    pollfd event{fd_, POLLIN, 0};
    return poll(&event, 1, 0) > 0;
  }
  bool kill() const { return syscall(SYS_pidfd_send_signal, fd_, SIGKILL, nullptr, 0) == 0; }

 private:
  int fd_ = -1;
};

class ShmReach final : public Reach {
 public:
  ShmReach(const World& world, const std::vector<Introduction>& ranks, Segment own)
      : me_(world.rank), ranks_(ranks), own_(std::move(own)) {
    for (int r = 0; r < world.world_size; ++r) {
      if (r == me_) {
        watches_.emplace_back();
        controls_.emplace_back();
        continue;
      }
      ProcessWatch watch(ranks[r].pid);
      // The watch is opened first: if the start time agrees afterwards, it is on the right process for good.
      if (!watch.valid() || start_time_of(ranks[r].pid) != ranks[r].start_time)
        throw UnreachablePeer{r, "ended before it was connected (process " + std::to_string(ranks[r].pid) + ")"};
      watches_.push_back(std::move(watch));
      try {
        controls_.push_back(
            SharedMemory::map(open_peer_fd(ranks[r].pid, ranks[r].fd, ranks[r].inode), Control::kSegmentBytes));
      } catch (const std::runtime_error& error) {
        throw UnreachablePeer{r, error.what()};
      }
    }
  }
  Control* control(int rank) override {
    return reinterpret_cast<Control*>(rank == me_ ? own_->data() : controls_[rank].data());
  }
  std::byte* window(int rank, const WindowPlace& place) override {
    if (rank == me_) return place.address;
    if (place.bytes == 0) return nullptr;
    // A segment exposed twice is mapped once. The inode is part of the key: descriptors are reused.
    const auto key = std::make_tuple(rank, place.fd, place.inode);
    auto it = mapped_.find(key);
    if (it == mapped_.end())
      it = mapped_
               .emplace(key,
                        SharedMemory::map(open_peer_fd(ranks_[rank].pid, place.fd, place.inode), place.segment_bytes))
               .first;
    return it->second.data() + place.offset;
  }
  bool alive(int rank) override { return rank == me_ || !watches_[rank].ended(); }
  bool fence(int rank) override { return rank != me_ && watches_[rank].kill(); }
  bool shares_address_space() const override { return false; }
  std::string describe(int rank) const override { return "process " + std::to_string(ranks_[rank].pid); }

 private:
  const int me_;
  const std::vector<Introduction> ranks_;
  Segment own_;
  std::vector<ProcessWatch> watches_;
  std::vector<SharedMemory> controls_;
  std::map<std::tuple<int, int, std::uint64_t>, SharedMemory> mapped_;
};

}  // namespace

int open_peer_fd(std::int64_t pid, int fd, std::uint64_t inode) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  const int own = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (own < 0) throw std::runtime_error("cannot open " + path + ": " + std::strerror(errno));
  struct stat status;
  if (fstat(own, &status) != 0 || status.st_ino != inode) {
    close(own);
    throw std::runtime_error(path + " is no longer the segment that was announced");
  }
  return own;
}

Introduction introduce_this_process() {
  Introduction self;
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  self.host = host;
  // Reaching a peer goes through /proc, so "the same machine" means the same boot and the same view of processes.
  self.machine = first_line("/proc/sys/kernel/random/boot_id") + "/" + link_of("/proc/self/ns/pid");
  // Tests take processes of one machine for several.
  if (const char* part = std::getenv("BELLOWS_TEST_MACHINE")) self.machine += std::string("/") + part;
  self.pid = getpid();
  self.start_time = start_time_of(self.pid);
  return self;
}

std::string shm_obstacle() {
  const int fd = pidfd_open(getpid());
  if (fd < 0) return std::string("the kernel cannot watch processes (pidfd_open: ") + std::strerror(errno) + ")";
  close(fd);
  if (access("/proc/self/fd", X_OK) != 0) return "/proc is not mounted";
  return "";
}

std::string shm_unfit(const std::vector<Introduction>& ranks) {
  for (std::size_t r = 1; r < ranks.size(); ++r)
    if (ranks[r].machine != ranks[0].machine)
      return "ranks 0 (" + ranks[0].host + ") and " + std::to_string(r) + " (" + ranks[r].host +
             ") are not on one host, or in separate containers";
  return shm_obstacle();
}

std::unique_ptr<Reach> make_shm_reach(const World& world, const std::vector<Introduction>& ranks, Segment own) {
  return std::make_unique<ShmReach>(world, ranks, std::move(own));
}

}  // namespace bellows
