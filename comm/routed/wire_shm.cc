#include "routed/wire_shm.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <tuple>

#include "transports/transport.h"

namespace bellows {

struct ShmWire::Notice {
  std::uint32_t call = 0;
  std::uint16_t key = 0;
  std::uint16_t is_release = 0;
  std::int32_t fd = -1;
  std::uint32_t unused = 0;
  std::uint64_t inode = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t segment_bytes = 0;
  WireTag tag() const { return {call, key}; }
};

// Written by one sender, read by one receiver.
struct ShmWire::Ring {
  static constexpr std::uint32_t kPlaces = 256;
  alignas(64) std::atomic<std::uint32_t> head{0};      // of the sender
  alignas(64) std::atomic<std::uint32_t> tail{0};      // of the receiver
  alignas(64) std::atomic<std::uint32_t> sleeping{0};  // the receiver wants its bell rung
  alignas(64) Notice places[kPlaces];
};

struct ShmWire::Lent {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
  int fd = -1;
  std::uint64_t inode = 0;
};

struct ShmWire::Peer {
  std::int64_t pid = 0;
  SharedMemory rings;
  Ring* to = nullptr;  // in the peer's segment
  int bell = -1;
  std::deque<Notice> waiting;  // the ring was full
  std::map<std::tuple<int, std::uint64_t>, SharedMemory> mapped;
  ~Peer() {
    if (bell >= 0) ::close(bell);
  }
};

namespace {
std::uint64_t number(WireTag tag) { return std::uint64_t{tag.call} << 16 | tag.key; }
}  // namespace

ShmWire::ShmWire(const World& world) : world_(world), own_(sizeof(Ring) * static_cast<std::size_t>(world.world_size)) {
  for (int r = 0; r < world.world_size; ++r) {
    peers_.push_back(nullptr);
    new (own_.data() + sizeof(Ring) * static_cast<std::size_t>(r)) Ring;
  }
  if (::pipe2(bell_, O_CLOEXEC | O_NONBLOCK) != 0)
    throw std::runtime_error(std::string("cannot make a pipe: ") + std::strerror(errno));
}

ShmWire::~ShmWire() {
  peers_.clear();
  ::close(bell_[0]);
  ::close(bell_[1]);
}

std::string ShmWire::address() const {
  return std::to_string(::getpid()) + " " + std::to_string(own_.fd()) + " " + std::to_string(inode_of(own_.fd())) +
         " " + std::to_string(bell_[1]) + " " + std::to_string(inode_of(bell_[1]));
}

void ShmWire::connect(const std::vector<std::string>& addresses) {
  for (int r = 0; r < world_.world_size; ++r) {
    if (r == world_.rank || addresses[r].empty()) continue;
    auto peer = std::make_unique<Peer>();
    int fd = -1, bell = -1;
    std::uint64_t inode = 0, bell_inode = 0;
    std::istringstream(addresses[r]) >> peer->pid >> fd >> inode >> bell >> bell_inode;
    try {
      peer->rings = SharedMemory::map(open_peer_fd(peer->pid, fd, inode), own_.size());
      peer->bell = open_peer_fd(peer->pid, bell, bell_inode);
      ::fcntl(peer->bell, F_SETFL, O_NONBLOCK);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error("rank " + std::to_string(r) + ": " + error.what());
    }
    peer->to = reinterpret_cast<Ring*>(peer->rings.data()) + world_.rank;
    peers_[r] = std::move(peer);
  }
}

void ShmWire::lend(const SharedMemory& segment) {
  if (segment.size() == 0) return;
  segments_[segment.data() + segment.size()] = {segment.data(), segment.size(), segment.fd(), inode_of(segment.fd())};
}

ShmWire::Ring& ShmWire::ring_for_me(int rank) { return reinterpret_cast<Ring*>(own_.data())[rank]; }

void ShmWire::send(int rank, WireTag tag, std::span<const std::byte> message, Transfer& transfer) {
  transfer.state = Transfer::kPending;
  Pending pending;
  pending.rank = rank;
  pending.tag = tag;
  pending.bytes = message.size();
  pending.transfer = &transfer;
  Notice notice;
  notice.call = tag.call;
  notice.key = tag.key;
  notice.bytes = message.size();
  const auto it = segments_.upper_bound(message.data());
  if (it != segments_.end() && it->second.begin <= message.data() &&
      message.data() + message.size() <= it->second.begin + it->second.bytes) {
    notice.fd = it->second.fd;
    notice.inode = it->second.inode;
    notice.offset = static_cast<std::uint64_t>(message.data() - it->second.begin);
    notice.segment_bytes = it->second.bytes;
  } else {
    std::size_t size = 4096;
    while (size < message.size()) size *= 2;
    const auto free = bounces_.lower_bound(size);
    if (free != bounces_.end() && free->first <= 2 * size) {
      pending.bounce = std::move(free->second);
      bounces_.erase(free);
    } else {
      pending.bounce = SharedMemory(size);
    }
    std::memcpy(pending.bounce.data(), message.data(), message.size());
    notice.fd = pending.bounce.fd();
    notice.inode = inode_of(notice.fd);
    notice.segment_bytes = pending.bounce.size();
  }
  sends_[{rank, number(tag)}] = std::move(pending);
  post(rank, notice);
}

void ShmWire::receive(int rank, WireTag tag, std::span<std::byte> place, Transfer& transfer) {
  transfer.state = Transfer::kPending;
  transfer.handle = number(tag);
  const Key key{rank, number(tag)};
  if (const auto it = early_.find(key); it != early_.end()) {
    deliver(rank, *it->second, transfer, place.size());
    early_.erase(it);
    return;
  }
  Pending pending;
  pending.rank = rank;
  pending.bytes = place.size();
  pending.transfer = &transfer;
  receives_[key] = std::move(pending);
}

void ShmWire::release(int rank, Transfer& transfer) {
  Notice notice;
  notice.is_release = 1;
  notice.call = static_cast<std::uint32_t>(transfer.handle >> 16);
  notice.key = static_cast<std::uint16_t>(transfer.handle);
  transfer.state = Transfer::kIdle;
  post(rank, notice);
}

void ShmWire::post(int rank, const Notice& notice) {
  peers_[rank]->waiting.push_back(notice);
  flush(rank);
}

bool ShmWire::flush(int rank) {
  Peer& peer = *peers_[rank];
  bool moved = false;
  std::uint32_t head = peer.to->head.load(std::memory_order_relaxed);
  while (!peer.waiting.empty() && head - peer.to->tail.load(std::memory_order_acquire) < Ring::kPlaces) {
    peer.to->places[head % Ring::kPlaces] = peer.waiting.front();
    peer.waiting.pop_front();
    peer.to->head.store(++head, std::memory_order_seq_cst);
    moved = true;
  }
  if (moved && peer.to->sleeping.load(std::memory_order_seq_cst)) ring_bell(rank);
  return moved;
}

void ShmWire::ring_bell(int rank) {
  const char one = 1;
  [[maybe_unused]] const auto written = ::write(peers_[rank]->bell, &one, 1);  // a full pipe is readable anyhow
}

bool ShmWire::progress() {
  bool moved = false;
  for (int r = 0; r < world_.world_size; ++r) {
    if (!peers_[r]) continue;
    if (!peers_[r]->waiting.empty()) moved |= flush(r);
    Ring& ring = ring_for_me(r);
    std::uint32_t tail = ring.tail.load(std::memory_order_relaxed);
    while (tail != ring.head.load(std::memory_order_acquire)) {
      const Notice notice = ring.places[tail % Ring::kPlaces];
      ring.tail.store(++tail, std::memory_order_release);
      take(r, notice);
      moved = true;
    }
  }
  return moved;
}

bool ShmWire::flushed() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const auto& peer) { return !peer || peer->waiting.empty(); });
}

void ShmWire::take(int rank, const Notice& notice) {
  const Key key{rank, number(notice.tag())};
  if (notice.is_release) {
    if (const auto it = sends_.find(key); it != sends_.end()) {
      it->second.transfer->state = Transfer::kDone;
      if (const std::size_t size = it->second.bounce.size(); size > 0)
        bounces_.emplace(size, std::move(it->second.bounce));
      sends_.erase(it);
    }
    return;
  }
  if (const auto it = receives_.find(key); it != receives_.end()) {
    Transfer& transfer = *it->second.transfer;
    const std::size_t bytes = it->second.bytes;
    receives_.erase(it);
    deliver(rank, notice, transfer, bytes);
    return;
  }
  early_[key] = std::make_unique<Notice>(notice);
}

void ShmWire::deliver(int rank, const Notice& notice, Transfer& transfer, std::size_t bytes) {
  transfer.state = Transfer::kFailed;
  if (notice.bytes != bytes) {
    transfer.error =
        "sent " + std::to_string(notice.bytes) + " bytes where " + std::to_string(bytes) + " were expected";
    return;
  }
  try {
    transfer.data = map(rank, notice);
    transfer.state = Transfer::kDone;
  } catch (const std::exception& error) {
    transfer.error = error.what();
  }
}

const std::byte* ShmWire::map(int rank, const Notice& notice) {
  Peer& peer = *peers_[rank];
  if (notice.offset > notice.segment_bytes || notice.bytes > notice.segment_bytes - notice.offset)
    throw std::runtime_error("a notice points outside its segment");
  const auto key = std::make_tuple(notice.fd, notice.inode);
  auto it = peer.mapped.find(key);
  if (it == peer.mapped.end())
    it = peer.mapped
             .emplace(key, SharedMemory::map(open_peer_fd(peer.pid, notice.fd, notice.inode), notice.segment_bytes))
             .first;
  return it->second.data() + notice.offset;
}

bool ShmWire::prepare_wait() {
  bool something = false;
  for (int r = 0; r < world_.world_size; ++r) {
    if (!peers_[r]) continue;
    Ring& ring = ring_for_me(r);
    ring.sleeping.store(1, std::memory_order_seq_cst);
    something |= ring.head.load(std::memory_order_seq_cst) != ring.tail.load(std::memory_order_relaxed);
    something |= !peers_[r]->waiting.empty();
  }
  return !something;
}

void ShmWire::end_wait() {
  for (int r = 0; r < world_.world_size; ++r)
    if (peers_[r]) ring_for_me(r).sleeping.store(0, std::memory_order_relaxed);
  char rings[64];
  while (::read(bell_[0], rings, sizeof rings) > 0) {
  }
}

void ShmWire::wait(Nanos limit, std::span<const int> also) {
  if (prepare_wait()) {
    std::vector<pollfd> fds = {{bell_[0], POLLIN, 0}};
    for (const int fd : also) fds.push_back({fd, POLLIN, 0});
    const timespec span{limit / 1'000'000'000, limit % 1'000'000'000};
    ::ppoll(fds.data(), fds.size(), &span, nullptr);
  }
  end_wait();
}

void ShmWire::wake() {
  const char one = 1;
  [[maybe_unused]] const auto written = ::write(bell_[1], &one, 1);
}

void ShmWire::cancel_all() {
  // Nothing writes into memory of ours; what peers read of it stays mapped by them.
  for (auto* table : {&sends_, &receives_}) {
    for (auto& [key, pending] : *table) {
      pending.transfer->state = Transfer::kFailed;
      pending.transfer->error = "cancelled";
    }
    table->clear();
  }
  cancelled_ = true;
}

}  // namespace bellows
