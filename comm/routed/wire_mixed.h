#pragma once
#include <memory>

#include "routed/wire.h"
#include "routed/wire_shm.h"

namespace bellows {

/// Shared memory to the ranks of one's own host, another wire to all others.
class MixedWire final : public Wire {
 public:
  MixedWire(const World& world, std::vector<bool> near, std::unique_ptr<ShmWire> inside, std::unique_ptr<Wire> outside);

  std::string address() const override;
  void connect(const std::vector<std::string>& addresses) override;
  void remember(std::span<const std::byte> memory) override { outside_->remember(memory); }
  void forget(std::span<const std::byte> memory) override { outside_->forget(memory); }
  void send(int rank, WireTag tag, std::span<const std::byte> message, Transfer& transfer) override;
  void receive(int rank, WireTag tag, std::span<std::byte> place, Transfer& transfer) override;
  void release(int rank, Transfer& transfer) override;
  bool progress() override;
  bool flushed() const override { return inside_->flushed() && outside_->flushed(); }
  void wait(Nanos limit, std::span<const int> also) override;
  void wake() override { outside_->wake(); }
  void cancel_all() override;
  std::string describe() const override { return "shm inside hosts, " + outside_->describe() + " between them"; }

  ShmWire& inside() { return *inside_; }

 private:
  Wire& to(int rank) { return near_[rank] ? static_cast<Wire&>(*inside_) : *outside_; }

  const std::vector<bool> near_;
  const std::unique_ptr<ShmWire> inside_;
  const std::unique_ptr<Wire> outside_;
};

}  // namespace bellows
