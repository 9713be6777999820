#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "bellows/base/clock.h"
#include "routed/wire.h"

namespace bellows {

/// One collective as one rank carries it out: messages to receive and to send, and tasks (adding, copying) between
/// them. A small graph: a task waits for receives and tasks, a send for tasks. It is cut into waves, the unit in which
/// scratch memory is given: waves are opened in order, alike on every rank, so ranks never wait for each other's
/// memory.
struct Exchange {
  struct Receive {
    int peer = 0;
    std::uint16_t key = 0;
    std::size_t bytes = 0;
    std::byte* place = nullptr;  ///< where it is wanted; null: in scratch
    std::size_t scratch = 0;     ///< offset in the wave's scratch if `place` is null
    int wave = 0;
    std::vector<int> tasks;  ///< that wait for it
    Transfer transfer;
  };
  struct Task {
    std::function<void()> run;
    int wave = 0;
    int waits_for = 0;  ///< receives and tasks
    std::vector<int> tasks, sends;
  };
  struct Send {
    int peer = 0;
    std::uint16_t key = 0;
    std::size_t bytes = 0;
    const std::byte* data = nullptr;  ///< null: in scratch
    std::size_t scratch = 0;
    int wave = 0;
    int waits_for = 0;  ///< tasks
    Transfer transfer;
  };
  struct Wave {
    std::size_t scratch_bytes = 0;
    std::byte* scratch = nullptr;  ///< while the wave is open
    std::vector<int> receives, tasks, sends;
    int open_parts = 0;  ///< of these, not over yet
    bool opened = false;
  };

  std::string what;
  std::string title;  ///< for people: "barrier 'end of step'"
  int priority = 0;
  std::uint64_t signature = 0;  ///< of everything that must agree between the ranks
  Nanos timeout = 0;            ///< 0: the communicator's
  std::vector<Receive> receives;
  std::vector<Task> tasks;
  std::vector<Send> sends;
  std::vector<Wave> waves;

  int add_wave(std::size_t scratch_bytes = 0) {
    waves.emplace_back().scratch_bytes = scratch_bytes;
    return static_cast<int>(waves.size()) - 1;
  }
  int add_receive(Receive receive) {
    waves[receive.wave].receives.push_back(static_cast<int>(receives.size()));
    receives.push_back(std::move(receive));
    return static_cast<int>(receives.size()) - 1;
  }
  int add_task(Task task) {
    waves[task.wave].tasks.push_back(static_cast<int>(tasks.size()));
    tasks.push_back(std::move(task));
    return static_cast<int>(tasks.size()) - 1;
  }
  int add_send(Send send) {
    waves[send.wave].sends.push_back(static_cast<int>(sends.size()));
    sends.push_back(std::move(send));
    return static_cast<int>(sends.size()) - 1;
  }
  void task_after_receive(int task, int receive) {
    receives[receive].tasks.push_back(task);
    ++tasks[task].waits_for;
  }
  void task_after_task(int task, int earlier) {
    tasks[earlier].tasks.push_back(task);
    ++tasks[task].waits_for;
  }
  void send_after_task(int send, int task) {
    tasks[task].sends.push_back(send);
    ++sends[send].waits_for;
  }
  /// For tasks: where a message has come to stand.
  const std::byte* received(int receive) const { return receives[receive].transfer.data; }
  std::byte* scratch(int wave) const { return waves[wave].scratch; }

  // From here on the router's own.
  enum State : int { kUnderWay, kDone, kFailed };
  std::atomic<int> state{kUnderWay};
  std::uint32_t number = 0;
  std::uint32_t tag = 0;  ///< WireTag::call: the number, and a hash of what must agree
  Nanos moved_at = 0;     ///< when something of it was over last, or it was taken up
  Nanos finished_at = 0;
  std::exception_ptr error;
  int open_waves_end = 0;  // waves before it have been opened
  int finished_waves = 0;
  int tasks_left = 0;
  std::vector<std::size_t> sending;  // bytes under way, by rank
  std::vector<int> pending_receives, pending_sends, ready_sends, ready_tasks;
  bool asked = false;      // peers have been told that this call waits
  std::vector<bool> here;  // by rank: has answered that it waits in this call too
  std::string trouble;     // a transfer failed: the reason is told better by others, if they are given a moment
  Nanos trouble_at = 0;
  int trouble_peer = 0;
};

}  // namespace bellows
