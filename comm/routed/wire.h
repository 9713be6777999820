#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bellows/base/clock.h"
#include "bellows/base/world.h"

namespace bellows {

/// Names a message between two ranks of a generation: at most one is under way per (from, to, tag).
/// The lower half of `call` counts the collectives of the communicator (and wraps), the upper is a hash of what must
/// agree about one; a wire with short tags may drop it. `key` counts the messages of one collective.
struct WireTag {
  std::uint32_t call = 0;
  std::uint16_t key = 0;
  bool operator==(const WireTag&) const = default;
};

/// One message being sent or received. Lives at a fixed address from `send`/`receive` until it is no longer pending (or
/// the wire is gone), and so does the memory behind it.
struct Transfer {
  enum State : int {
    kIdle,
    kPending,
    kDone,    ///< sent: the memory may be written again. Received: `data` holds the message
    kFailed,  ///< `error` says why; the wire may not know the peer's fate
  };
  State state = kIdle;
  /// Where a received message stands: the place given to `receive`, or memory of the sender that this process maps
  /// ("lent"); then it stays readable until `release`.
  const std::byte* data = nullptr;
  std::string error;
  std::uintptr_t handle = 0;  ///< the wire's own
};

/// Moves bytes between ranks of one generation, point to point: all in which networks differ. Non-blocking, matched by
/// tag rather than by order. All calls come from one thread at a time (whoever drives the communicator) except `wake`.
/// Noticing that a peer has died is not a wire's duty (lifelines do that); passing on what it learns is welcome.
class Wire {
 public:
  virtual ~Wire() = default;

  /// What peers need to reach this rank; any bytes.
  virtual std::string address() const = 0;
  /// `addresses[r]` is rank r's address(); empty: this wire is not used for that rank. Called once, before anything
  /// else. May return before a connection stands. Throws std::runtime_error, naming the rank, if one cannot be had.
  virtual void connect(const std::vector<std::string>& addresses) = 0;

  /// A hint that messages will be sent from and received into this memory: registered with the network where that saves
  /// a copy. It stays mapped until `forget` or the end of the wire.
  virtual void remember(std::span<const std::byte> /*memory*/) {}
  virtual void forget(std::span<const std::byte> /*memory*/) {}

  virtual void send(int rank, WireTag tag, std::span<const std::byte> message, Transfer& transfer) = 0;
  /// `place` has exactly the size that the peer sends; a message of another size fails the transfer.
  virtual void receive(int rank, WireTag tag, std::span<std::byte> place, Transfer& transfer) = 0;
  /// Gives lent memory back to the sender. For every received transfer, once its data has been used.
  virtual void release(int /*rank*/, Transfer& /*transfer*/) {}

  /// Carries on what is under way and returns whether anything moved. Never sleeps.
  virtual bool progress() = 0;
  /// False while something that was sent or released has not left this rank yet and needs `progress` to do so.
  virtual bool flushed() const { return true; }
  /// Sleeps until something may have happened, `wake` is called, or `limit` has passed; early returns are fine. `also`
  /// are file descriptors of the caller that end the sleep when they become readable.
  virtual void wait(Nanos limit, std::span<const int> also) = 0;
  /// From any thread: ends the present or the next `wait`.
  virtual void wake() = 0;

  /// Ends every pending transfer as kFailed as soon as the network no longer touches its memory; nothing can be sent
  /// afterwards. Returns within about a second even if peers are dead.
  virtual void cancel_all() = 0;

  /// For messages: "ucx (tcp, eth0)".
  virtual std::string describe() const = 0;
};

}  // namespace bellows
