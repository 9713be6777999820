#pragma once
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "bellows/base/memory.h"
#include "routed/wire.h"

namespace bellows {

/// Messages between processes (or threads) of one host: what is sent is lent, the receiver reads it where it stands. A
/// message is a notice in the receiver's ring that says where; releasing it is a notice back. Memory that peers cannot
/// map is copied into some that they can.
class ShmWire final : public Wire {
 public:
  explicit ShmWire(const World& world);
  ~ShmWire() override;

  std::string address() const override;
  void connect(const std::vector<std::string>& addresses) override;
  /// Memory of a segment: sent without a copy.
  void lend(const SharedMemory& segment);
  void send(int rank, WireTag tag, std::span<const std::byte> message, Transfer& transfer) override;
  void receive(int rank, WireTag tag, std::span<std::byte> place, Transfer& transfer) override;
  void release(int rank, Transfer& transfer) override;
  bool progress() override;
  bool flushed() const override;
  void wait(Nanos limit, std::span<const int> also) override;
  void wake() override;
  void cancel_all() override;
  std::string describe() const override { return "shm"; }

  /// For a wait that others carry out: readable once a peer has rung. `prepare_wait` is false if there is something to
  /// do already; `end_wait` follows every prepare.
  int bell_fd() const { return bell_[0]; }
  bool prepare_wait();
  void end_wait();

 private:
  struct Notice;
  struct Ring;
  struct Peer;
  struct Lent;
  struct Pending {
    int rank = -1;
    WireTag tag;
    std::size_t bytes = 0;
    Transfer* transfer = nullptr;
    SharedMemory bounce;
  };
  using Key = std::pair<int, std::uint64_t>;  // rank, tag

  Ring& ring_for_me(int rank);
  void post(int rank, const Notice& notice);
  bool flush(int rank);
  void take(int rank, const Notice& notice);
  void deliver(int rank, const Notice& notice, Transfer& transfer, std::size_t bytes);
  const std::byte* map(int rank, const Notice& notice);
  void ring_bell(int rank);

  const World world_;
  SharedMemory own_;  // rings, one per sender
  int bell_[2] = {-1, -1};
  std::vector<std::unique_ptr<Peer>> peers_;
  std::map<const std::byte*, Lent> segments_;  // by end
  std::map<Key, Pending> sends_;
  std::map<Key, Pending> receives_;
  std::map<Key, std::unique_ptr<Notice>> early_;      // come before they were asked for
  std::multimap<std::size_t, SharedMemory> bounces_;  // free ones, by size
  bool cancelled_ = false;
};

}  // namespace bellows
