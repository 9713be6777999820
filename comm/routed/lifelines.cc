#include "routed/lifelines.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "bellows/base/log.h"
#include "group.h"

namespace bellows {
namespace {

constexpr char kFailure = 'F', kFarewell = 'B', kQuestion = 'Q', kAnswer = 'H';
constexpr std::uint32_t kLongestFrame = 64 << 10;
constexpr double kTry = 2;            // for one address of a peer
constexpr double kHelloPatience = 2;  // for a stranger to prove itself
constexpr std::uint32_t kMagic = 0x314C4C42;

struct Hello {
  std::uint32_t magic = kMagic;
  std::uint32_t rank = 0;
  std::uint64_t generation = 0;
  char secret[16] = {};
};

std::string to_hex(const std::string& bytes) {
  std::string text;
  for (const unsigned char c : bytes) {
    static const char* const digits = "0123456789abcdef";
    text += digits[c >> 4];
    text += digits[c & 15];
  }
  return text;
}
std::string from_hex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  return bytes;
}

void watch_life(int fd) {
  // A host that vanishes without a word is noticed within about five seconds.
  const int on = 1, idle = 2, interval = 1, count = 3, limit = 5000;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof limit);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// Sends or receives exactly `bytes` on a non-blocking socket.
bool move_all(int fd, void* data, std::size_t bytes, bool out, Nanos until) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = out ? ::send(fd, at, bytes, MSG_NOSIGNAL) : ::recv(fd, at, bytes, 0);
    if (n > 0) {
      at += n;
      bytes -= static_cast<std::size_t>(n);
      continue;
    }
    if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return false;
    const Nanos left = until - now_ns();
    if (left <= 0) return false;
    pollfd event{fd, static_cast<short>(out ? POLLOUT : POLLIN), 0};
    ::poll(&event, 1, static_cast<int>(left / 1'000'000) + 1);
  }
  return true;
}

int try_connect(const std::string& host, int port, Nanos until) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0 || !found) return -1;
  const int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int result = fd < 0 ? -1 : ::connect(fd, found->ai_addr, found->ai_addrlen);
  const bool pending = result != 0 && errno == EINPROGRESS;
  freeaddrinfo(found);
  if (fd < 0) return -1;
  if (pending) {
    pollfd event{fd, POLLOUT, 0};
    const Nanos left = until - now_ns();
    int error = 0;
    socklen_t size = sizeof error;
    if (left > 0 && ::poll(&event, 1, static_cast<int>(left / 1'000'000) + 1) > 0 &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0)
      return fd;
  } else if (result == 0) {
    return fd;
  }
  ::close(fd);
  return -1;
}

/// Leading bits that two addresses of one family share: who is on my network.
int nearness(const std::string& a, const std::string& b) {
  for (const int family : {AF_INET, AF_INET6}) {
    unsigned char x[16] = {}, y[16] = {};
    if (inet_pton(family, a.c_str(), x) != 1 || inet_pton(family, b.c_str(), y) != 1) continue;
    int bits = 0;
    for (int i = 0; i < (family == AF_INET ? 4 : 16); ++i) {
      const int differing = x[i] ^ y[i];
      if (differing == 0) {
        bits += 8;
        continue;
      }
      return bits + __builtin_clz(static_cast<unsigned>(differing)) - 24;
    }
    return bits;
  }
  return 0;
}

std::string network_namespace() {
  char text[128] = {};
  const ssize_t n = ::readlink("/proc/self/ns/net", text, sizeof text - 1);
  return n > 0 ? text : "?";
}
std::string boot() {
  std::string id(36, '?');
  const int fd = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    if (::read(fd, id.data(), id.size()) < 0) id.assign(36, '?');
    ::close(fd);
  }
  return id;
}

}  // namespace

struct Lifelines::Peer {
  int fd = -1;
  bool left = false;
  std::string in;  // what has come of a frame
  Mutex mutex;     // for sending
};

std::vector<std::string> own_addresses() {
  std::vector<std::string> outer, loopback;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {"127.0.0.1"};
  for (const ifaddrs* i = list; i; i = i->ifa_next) {
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP)) continue;
    char text[INET6_ADDRSTRLEN] = {};
    if (i->ifa_addr->sa_family == AF_INET) {
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr, text, sizeof text);
    } else if (i->ifa_addr->sa_family == AF_INET6) {
      const auto* six = reinterpret_cast<const sockaddr_in6*>(i->ifa_addr);
      if (IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) continue;  // means nothing without an interface
      inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof text);
    } else {
      continue;
    }
    (i->ifa_flags & IFF_LOOPBACK ? loopback : outer).push_back(text);
  }
  freeifaddrs(list);
  outer.insert(outer.end(), loopback.begin(), loopback.end());
  return outer;
}

Lifelines::Lifelines(const World& world, const std::string& bind) : world_(world), bind_(bind), secret_(16, '\0') {
  for (int r = 0; r < world.world_size; ++r) peers_.push_back(std::make_unique<Peer>());
  if (::getrandom(secret_.data(), secret_.size(), 0) != static_cast<ssize_t>(secret_.size()))
    throw std::runtime_error("the kernel gives no random bytes");
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  // One socket for both families where the host has IPv6.
  sockaddr_storage place{};
  socklen_t size = sizeof(sockaddr_in);
  if (!bind.empty()) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    addrinfo* found = nullptr;
    if (getaddrinfo(bind.c_str(), "0", &hints, &found) != 0 || !found)
      throw UserError("cannot listen on '" + bind + "': it is no address of this host");
    std::memcpy(&place, found->ai_addr, found->ai_addrlen);
    size = found->ai_addrlen;
    char text[INET6_ADDRSTRLEN] = {};
    getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    bind_ = text;
    freeaddrinfo(found);
    listener_ = ::socket(place.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  } else {
    listener_ = ::socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener_ >= 0) {
      const int off = 0;
      setsockopt(listener_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      reinterpret_cast<sockaddr_in6*>(&place)->sin6_family = AF_INET6;
      size = sizeof(sockaddr_in6);
    } else {
      listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      place.ss_family = AF_INET;
    }
  }
  if (listener_ < 0 || ::bind(listener_, reinterpret_cast<sockaddr*>(&place), size) != 0 ||
      ::listen(listener_, 1024) != 0 || ::getsockname(listener_, reinterpret_cast<sockaddr*>(&place), &size) != 0) {
    const std::string why = std::strerror(errno);
    if (listener_ >= 0) ::close(listener_);
    ::close(epoll_);
    throw std::runtime_error("cannot listen for peers" + (bind.empty() ? "" : " on " + bind) + ": " + why);
  }
  port_ = ntohs(place.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&place)->sin6_port
                                            : reinterpret_cast<sockaddr_in*>(&place)->sin_port);
}

Lifelines::~Lifelines() {
  for (const auto& peer : peers_)
    if (peer->fd >= 0) ::close(peer->fd);
  if (listener_ >= 0) ::close(listener_);
  if (epoll_ >= 0) ::close(epoll_);
}

// address = port secret boot network-namespace address...
std::string Lifelines::address() const {
  std::string text = std::to_string(port_) + " " + to_hex(secret_) + " " + boot() + " " + network_namespace();
  if (!bind_.empty()) return text + " " + bind_;
  for (const std::string& one : own_addresses()) text += " " + one;
  return text;
}

void Lifelines::connect(const std::vector<std::string>& addresses, Deadline deadline) {
  const auto give_up = [&](const std::vector<int>& ranks, const std::string& why) {
    throw CommError(
        CommError::Kind::kTimeout, "connect", ranks, world_.generation,
        "connect: " + list_ranks(ranks) + " " + why + " (generation " + std::to_string(world_.generation) + ")");
  };
  const std::vector<std::string> mine = own_addresses();
  for (int r = 0; r < world_.rank; ++r) {
    std::istringstream in(addresses[r]);
    int port = 0;
    std::string secret, machine, net, one;
    in >> port >> secret >> machine >> net;
    std::vector<std::pair<int, std::string>> places;
    const bool here = machine == boot() && net == network_namespace();
    while (in >> one) {
      const bool loopback = one == "::1" || one.rfind("127.", 0) == 0;
      if (loopback && !here) continue;  // it would lead to this host, not to the peer's
      int near = loopback ? 1000 : 0;
      for (const std::string& own : mine) near = std::max(near, nearness(own, one));
      places.emplace_back(-near, one);
    }
    std::stable_sort(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    int fd = -1;
    std::string tried;
    while (fd < 0 && !deadline.passed()) {
      tried.clear();
      for (const auto& [near, place] : places) {
        fd = try_connect(place, port, std::min(deadline.when(), now_ns() + from_seconds(kTry)));
        if (fd >= 0) break;
        tried += (tried.empty() ? "" : ", ") + place;
      }
      if (fd < 0) ::usleep(50'000);
    }
    if (fd < 0)
      give_up({r},
              "cannot be reached on port " + std::to_string(port) + " of " + (tried.empty() ? "any address" : tried));
    watch_life(fd);
    Hello hello;
    hello.rank = static_cast<std::uint32_t>(world_.rank);
    hello.generation = world_.generation;
    const std::string token = from_hex(secret);
    std::memcpy(hello.secret, token.data(), std::min(token.size(), sizeof hello.secret));
    if (!move_all(fd, &hello, sizeof hello, true, deadline.when())) {
      ::close(fd);
      give_up({r}, "closed the connection");
    }
    peers_[r]->fd = fd;
  }
  int expected = world_.world_size - 1 - world_.rank;
  while (expected > 0) {
    std::vector<int> missing;
    for (int r = world_.rank + 1; r < world_.world_size; ++r)
      if (peers_[r]->fd < 0) missing.push_back(r);
    const Nanos left = deadline.remaining();
    if (left <= 0) give_up(missing, "did not connect in time");
    pollfd event{listener_, POLLIN, 0};
    if (::poll(&event, 1, static_cast<int>(left / 1'000'000) + 1) <= 0) continue;
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    const int fd = ::accept4(listener_, reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) continue;
    Hello hello;
    const bool came =
        move_all(fd, &hello, sizeof hello, false, std::min(deadline.when(), now_ns() + from_seconds(kHelloPatience)));
    const int r = static_cast<int>(hello.rank);
    if (!came || hello.magic != kMagic || std::memcmp(hello.secret, secret_.data(), secret_.size()) != 0 ||
        hello.generation != world_.generation || r <= world_.rank || r >= world_.world_size || peers_[r]->fd >= 0) {
      char text[64] = "?";
      getnameinfo(reinterpret_cast<sockaddr*>(&from), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
      log::warn("a peer at {} could not prove that it is of generation {}: dropped", text, world_.generation);
      ::close(fd);
      continue;
    }
    watch_life(fd);
    peers_[r]->fd = fd;
    --expected;
  }
  ::close(listener_);
  listener_ = -1;
  for (int r = 0; r < world_.world_size; ++r) {
    if (peers_[r]->fd < 0) continue;
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP;
    event.data.u32 = static_cast<std::uint32_t>(r);
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, peers_[r]->fd, &event);
  }
}

int Lifelines::fd() const { return epoll_; }

void Lifelines::poll(const Events& events) {
  epoll_event ready[16];
  const int n = ::epoll_wait(epoll_, ready, 16, 0);
  for (int i = 0; i < n; ++i) {
    const int rank = static_cast<int>(ready[i].data.u32);
    if (read_some(rank, events)) continue;
    const bool farewell = peers_[rank]->left;
    ::epoll_ctl(epoll_, EPOLL_CTL_DEL, peers_[rank]->fd, nullptr);
    if (!farewell) events.lost(rank, "its process has ended or its host cannot be reached");
  }
}

// False at the end of the connection.
bool Lifelines::read_some(int rank, const Events& events) {
  Peer& peer = *peers_[rank];
  char block[4096];
  const ssize_t n = ::recv(peer.fd, block, sizeof block, 0);
  if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  if (n == 0) return false;
  peer.in.append(block, static_cast<std::size_t>(n));
  while (peer.in.size() >= 5) {
    std::uint32_t size = 0;
    std::memcpy(&size, peer.in.data(), 4);
    if (size > kLongestFrame) return false;
    if (peer.in.size() < 5 + size) break;
    const char type = peer.in[4];
    std::istringstream body(peer.in.substr(5, size));
    peer.in.erase(0, 5 + size);
    if (type == kFarewell) {
      peer.left = true;
      events.left(rank);
    } else if (type == kFailure) {
      Failure failure;
      int kind = 0, count = 0;
      body >> kind >> count;
      for (int i = 0; i < count && i < 1024; ++i) {
        int r = 0;
        body >> r;
        failure.ranks.push_back(r);
      }
      body.ignore(1);
      std::getline(body, failure.operation);
      std::getline(body, failure.message, '\0');
      failure.kind = static_cast<CommError::Kind>(std::clamp(kind, 0, 2));
      events.failed(failure);
    } else if (type == kQuestion) {
      Question question;
      body >> question.call >> question.signature;
      body.ignore(1);
      std::getline(body, question.what, '\0');
      events.asked(rank, question);
    } else if (type == kAnswer) {
      std::uint32_t call = 0;
      body >> call;
      events.here(rank, call);
    }
  }
  return true;
}

void Lifelines::send(int rank, char type, const std::string& body) {
  Peer& peer = *peers_[rank];
  if (peer.fd < 0) return;
  std::string frame(5, '\0');
  const auto size = static_cast<std::uint32_t>(body.size());
  std::memcpy(frame.data(), &size, 4);
  frame[4] = type;
  frame += body;
  MutexLock lock(peer.mutex);
  // Small and rare: fits into the socket's buffer unless the peer is beyond help.
  move_all(peer.fd, frame.data(), frame.size(), true, now_ns() + 10'000'000);
}

void Lifelines::tell_failure(const Failure& failure) {
  std::string body = std::to_string(static_cast<int>(failure.kind)) + " " + std::to_string(failure.ranks.size());
  for (const int r : failure.ranks) body += " " + std::to_string(r);
  body += "\n" + failure.operation + "\n" + failure.message.substr(0, 8192);
  for (int r = 0; r < world_.world_size; ++r)
    if (r != world_.rank) send(r, kFailure, body);
}
void Lifelines::tell_farewell() {
  for (int r = 0; r < world_.world_size; ++r)
    if (r != world_.rank) send(r, kFarewell, "");
}
void Lifelines::ask(int rank, const Question& question) {
  send(rank, kQuestion,
       std::to_string(question.call) + " " + std::to_string(question.signature) + "\n" + question.what.substr(0, 1024));
}

void Lifelines::answer(int rank, std::uint32_t call) { send(rank, kAnswer, std::to_string(call)); }

}  // namespace bellows
