#pragma once
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bellows/base/error.h"
#include "bellows/base/memory.h"
#include "bellows/base/mutex.h"
#include "bellows/base/world.h"
#include "bellows/comm/communicator.h"
#include "routed/exchange.h"
#include "routed/lifelines.h"
#include "routed/scratch.h"
#include "routed/wire.h"

namespace bellows {

/// Carries out exchanges over a wire: opens waves, posts messages, runs tasks as what they wait for arrives. Several
/// exchanges are under way at once; those of higher priority go first at every turn (next message, next task).
/// As in Group, one thread at a time drives: a caller who waits, else the progress thread.
class Router {
 public:
  /// `lend` is told of scratch memory before messages are sent from it.
  Router(const World& world, std::unique_ptr<Wire> wire, std::unique_ptr<Lifelines> lifelines,
         std::function<void(const SharedMemory&)> lend, double timeout_s, bool may_spin);
  ~Router();
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  const World& world() const { return world_; }
  Wire& wire() { return *wire_; }

  std::shared_ptr<Exchange> submit(std::shared_ptr<Exchange> exchange, bool asynchronous);
  void wait(const std::shared_ptr<Exchange>& exchange);
  void run(const std::shared_ptr<Exchange>& exchange) { wait(submit(exchange, false)); }
  /// Runs `action` with nobody driving: for calls on the wire outside of exchanges.
  void exclusively(const std::function<void()>& action);
  /// Latches and tells everybody, then throws the first error.
  [[noreturn]] void raise(CommError::Kind kind, const std::string& operation, const std::vector<int>& ranks,
                          const std::string& message);
  void abort(const std::string& why);
  /// The first error of the generation; null while there is none.
  std::exception_ptr failure() const {
    MutexLock lock(mutex_);
    return failure_;
  }
  /// Leaves the generation: finishes what is under way if peers go on, fails it if not.
  void close();
  CommStats stats() const;

 private:
  using Failure = Lifelines::Failure;
  template <class Condition>
  void drive_until(const Condition& condition);
  void progress_loop();
  void step() noexcept;
  bool pass();
  bool has_news();
  void take_up();
  bool open_waves(Exchange& exchange, bool behind);
  bool advance(Exchange& exchange);
  void start_sends(Exchange& exchange, bool first);
  bool run_one_task();
  void part_over(Exchange& exchange, int wave);
  void finish(std::size_t index);
  void sleep();
  std::string current_call();
  void listen();
  void check_deadlines();
  void note_trouble(Exchange& x, const char* direction, int peer, const Transfer& transfer);
  [[noreturn]] void throw_left(const Exchange& exchange, int rank) const;
  void ask(Exchange& exchange);
  std::vector<int> not_here(const Exchange& exchange, const std::vector<int>& awaited) const;
  void compare(int rank, const Lifelines::Question& question);
  std::vector<int> awaited(const Exchange& exchange) const;
  void fail(Failure failure, bool tell);
  std::string suffix() const;

  const World world_;
  ScratchPool scratch_;  // the driver's; outlives the wire, which may still know of it
  const std::unique_ptr<Wire> wire_;
  const std::unique_ptr<Lifelines> lifelines_;
  const Nanos timeout_;
  const bool may_spin_;

  // The driver's.
  std::vector<std::shared_ptr<Exchange>> active_;  // by priority, then number
  std::array<std::size_t, 2> scratch_in_use_{};  // usual, urgent
  std::vector<std::size_t> sending_;             // usual bytes under way, by rank
  std::vector<std::optional<Nanos>> left_at_;    // by rank, of those that have dropped the communicator
  Nanos idle_since_ = 0, last_listen_ = 0, finished_at_ = 0;
  struct Loss {
    int rank = 0;
    Nanos at = 0;
    std::string how;
  };
  std::optional<Loss> loss_;                                                             // of a peer
  std::map<std::uint32_t, std::vector<std::pair<int, Lifelines::Question>>> questions_;  // about calls to come

  std::atomic<std::uint64_t> bytes_from_peers_{0};
  std::atomic<bool> failing_{false};  // an abort waits to be carried out

  mutable Mutex mutex_;
  CondVar changed_, work_;
  std::uint32_t last_number_ BELLOWS_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<Exchange>> inbox_ BELLOWS_GUARDED_BY(mutex_);
  std::deque<Lifelines::Question> recent_ BELLOWS_GUARDED_BY(mutex_);
  int open_ BELLOWS_GUARDED_BY(mutex_) = 0;
  bool driving_ BELLOWS_GUARDED_BY(mutex_) = false;
  bool stop_ BELLOWS_GUARDED_BY(mutex_) = false;
  bool closed_ BELLOWS_GUARDED_BY(mutex_) = false;
  std::string abort_why_ BELLOWS_GUARDED_BY(mutex_);
  std::exception_ptr failure_ BELLOWS_GUARDED_BY(mutex_);
  CommStats stats_ BELLOWS_GUARDED_BY(mutex_);
  std::thread progress_;
};

}  // namespace bellows
