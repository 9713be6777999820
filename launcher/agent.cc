#include "agent.h"

#include <poll.h>
#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "bellows/base/error.h"
#include "bellows/base/log.h"
#include "guard.h"

namespace bellows {
namespace {

constexpr double kPatience = 30;      // for a coordinator while nothing runs here
constexpr double kTermGrace = 0.5;    // between SIGTERM and SIGKILL
constexpr double kFinishGrace = 120;  // for a process to end after its training has

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace

Agent::Agent(AgentOptions options)
    : options_(std::move(options)),
      client_(options_.coordinator, options_.token,
              fmt::format("{}:{}", options_.host.empty() ? host_name() : options_.host, ::getpid()),
              options_.host.empty() ? host_name() : options_.host, options_.slots),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      reached_at_(now_ns()) {
  if (!options_.log_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options_.log_dir, error);
    if (error) throw UserError(fmt::format("cannot make the log directory {}: {}", options_.log_dir, error.message()));
  }
}

Agent::~Agent() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  client_.cancel();
  if (poller_.joinable()) poller_.join();
  if (courier_.joinable()) courier_.join();
  ::close(wake_fd_);
}

void Agent::kill() {
  kill_ = true;
  wake();
}

void Agent::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_fd_, &one, sizeof(one));
}

void Agent::run() {
  poller_ = std::thread([this] { poll_orders(); });
  courier_ = std::thread([this] { deliver_exits(); });
  Nanos end_since = 0;
  bool asked = false;
  while (true) {
    AgentOrders orders;
    {
      MutexLock lock(mutex_);
      orders = orders_;
      if (children_.empty() && !orders.over && !kill_ && seconds(now_ns() - reached_at_) > kPatience)
        throw UserError(unreachable_);
    }
    if (!kill_) carry_out(orders);
    const bool over = orders.over || kill_;
    if (over && children_.empty()) break;
    if (over) {
      if (end_since == 0) end_since = now_ns();
      const bool at_once = orders.failed || kill_;
      if (at_once && !asked) {
        for (auto& [id, child] : children_) child->signal_group(SIGTERM);
        asked = true;
      }
      if (seconds(now_ns() - end_since) > (at_once ? kTermGrace : kFinishGrace)) {
        for (auto& [id, child] : children_) child->signal_group(SIGKILL);
      }
    }
    watch_children(over ? 50 : 500);
  }
  // What the coordinator does not know yet, it should: but the job's end does not wait for it.
  const Deadline deadline = Deadline::after(1);
  MutexLock lock(mutex_);
  while (!exits_.empty() && !deadline.passed()) changed_.wait_for(mutex_, std::chrono::milliseconds(50));
}

void Agent::carry_out(const AgentOrders& orders) {
  front_ = orders.front;
  if (!orders.over && !ending()) {
    for (const std::string& id : orders.start) {
      if (started_.insert(id).second) start(id);
    }
  }
  for (const std::string& id : orders.kill) {
    const auto it = children_.find(id);
    if (it != children_.end()) it->second->signal_group(SIGKILL);
  }
}

void Agent::start(const std::string& member) {
  ChildOptions child;
  child.command = options_.command;
  child.environment = options_.environment;
  child.without = options_.without;
  child.environment["BELLOWS_COORDINATOR"] = options_.coordinator;
  child.environment["BELLOWS_TOKEN"] = options_.token;
  child.environment["BELLOWS_MEMBER"] = member;
  child.environment["BELLOWS_HOST"] = options_.host.empty() ? host_name() : options_.host;
  if (!options_.log_dir.empty()) child.log_file = options_.log_dir + "/" + member + ".log";
  child.log_limit = options_.log_limit;
  const std::size_t slot = free_slot();
  if (slot < options_.processors.size()) child.processors = options_.processors[slot];
  child.bind_strict = options_.bind_strict;
  children_.emplace(member, std::make_unique<Child>(member, child));
  slots_[member] = slot;
  MutexLock lock(mutex_);
  running_ = running();
}

/// The lowest that has the fewest processes: a replacement may be started before its predecessor is reaped.
std::size_t Agent::free_slot() const {
  std::vector<int> used(static_cast<std::size_t>(std::max(1, options_.slots)), 0);
  for (const auto& [member, slot] : slots_) ++used[slot];
  return static_cast<std::size_t>(std::min_element(used.begin(), used.end()) - used.begin());
}

std::vector<std::string> Agent::running() {
  std::vector<std::string> ids;
  for (const auto& [id, child] : children_) ids.push_back(id);
  return ids;
}

void Agent::watch_children(int timeout_ms) {
  std::vector<pollfd> fds = {{wake_fd_, POLLIN, 0}};
  std::vector<Child*> owners = {nullptr};
  for (auto& [id, child] : children_) {
    for (const int fd : {child->exit_fd(), child->out_fd(), child->err_fd()}) {
      if (fd < 0) continue;
      fds.push_back({fd, POLLIN, 0});
      owners.push_back(child.get());
    }
  }
  if (::poll(fds.data(), fds.size(), timeout_ms) <= 0) return;
  if (fds[0].revents != 0) {
    std::uint64_t count;
    [[maybe_unused]] const auto got = ::read(wake_fd_, &count, sizeof(count));
  }
  std::set<Child*> ended;
  for (std::size_t i = 1; i < fds.size(); ++i) {
    if (fds[i].revents == 0) continue;
    Child* child = owners[i];
    if (fds[i].fd == child->exit_fd()) {
      ended.insert(child);
    } else {
      child->read_output(child->member() == front_ ? options_.forward : nullptr);
    }
  }
  for (Child* child : ended) {
    ProcessExit exit = child->reap(child->member() == front_ ? options_.forward : nullptr);
    children_.erase(exit.member);
    slots_.erase(exit.member);
    MutexLock lock(mutex_);
    running_ = running();
    exits_.push_back(std::move(exit));
    changed_.notify_all();
  }
}

void Agent::poll_orders() {
  MutexLock lock(mutex_);
  while (!closing_) {
    const std::string version = orders_.version;
    const std::vector<std::string> ids = running_;
    mutex_.unlock();
    auto reply = client_.poll(version, ids);
    mutex_.lock();
    if (closing_) return;
    if (!reply) {
      unreachable_ = reply.error();
      if (client_.denied()) {
        reached_at_ = now_ns() - from_seconds(2 * kPatience);  // asking again will not help
        wake();
      }
      changed_.wait_for(mutex_, std::chrono::milliseconds(100));
      continue;
    }
    reached_at_ = now_ns();
    const bool news = reply.value().version != version;
    orders_ = std::move(reply.value());
    if (news) wake();
    if (orders_.over) return;
  }
}

void Agent::deliver_exits() {
  MutexLock lock(mutex_);
  while (true) {
    while (exits_.empty() && !closing_) changed_.wait_for(mutex_, std::chrono::seconds(1));
    if (closing_) return;
    const ProcessExit exit = exits_.front();
    mutex_.unlock();
    const bool delivered = client_.report(exit).ok();
    mutex_.lock();
    if (delivered) {
      exits_.pop_front();
      changed_.notify_all();
    } else if (!closing_) {
      changed_.wait_for(mutex_, std::chrono::milliseconds(200));
    }
  }
}

}  // namespace bellows
