#include "routed/wire_mixed.h"

#include <cstring>

namespace bellows {

MixedWire::MixedWire(const World&, std::vector<bool> near, std::unique_ptr<ShmWire> inside,
                     std::unique_ptr<Wire> outside)
    : near_(std::move(near)), inside_(std::move(inside)), outside_(std::move(outside)) {}

// address = length of the inner one, blank, inner, outer
std::string MixedWire::address() const {
  const std::string inner = inside_->address();
  return std::to_string(inner.size()) + " " + inner + outside_->address();
}

void MixedWire::connect(const std::vector<std::string>& addresses) {
  std::vector<std::string> inner, outer;
  for (std::size_t r = 0; r < addresses.size(); ++r) {
    std::string one, other;
    if (!addresses[r].empty()) {
      const std::size_t blank = addresses[r].find(' ');
      const std::size_t size = std::stoul(addresses[r]);
      one = addresses[r].substr(blank + 1, size);
      other = addresses[r].substr(blank + 1 + size);
    }
    inner.push_back(near_[r] ? one : "");
    outer.push_back(near_[r] ? "" : other);
  }
  inside_->connect(inner);
  outside_->connect(outer);
}

void MixedWire::send(int rank, WireTag tag, std::span<const std::byte> message, Transfer& transfer) {
  to(rank).send(rank, tag, message, transfer);
}
void MixedWire::receive(int rank, WireTag tag, std::span<std::byte> place, Transfer& transfer) {
  to(rank).receive(rank, tag, place, transfer);
}
void MixedWire::release(int rank, Transfer& transfer) { to(rank).release(rank, transfer); }

bool MixedWire::progress() {
  const bool inner = inside_->progress();
  return outside_->progress() || inner;
}

void MixedWire::wait(Nanos limit, std::span<const int> also) {
  if (inside_->prepare_wait()) {
    std::vector<int> fds(also.begin(), also.end());
    fds.push_back(inside_->bell_fd());
    outside_->wait(limit, fds);
  }
  inside_->end_wait();
}

void MixedWire::cancel_all() {
  inside_->cancel_all();
  outside_->cancel_all();
}

}  // namespace bellows
