#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "bellows/comm/communicator.h"
#include "group.h"

namespace bellows {

/// One window as a rank sees it: where the memory of each rank stands.
struct MappedWindow {
  std::vector<std::byte*> base;
  std::vector<std::size_t> bytes;
  std::byte* own = nullptr;
};

/// Check the arguments (std::invalid_argument), and make the call that carries them out. `window` outlives the call.
std::shared_ptr<Call> make_reduce_scatter(Group& group, const MappedWindow& window, ReduceScatterArgs args);
std::shared_ptr<Call> make_all_reduce(Group& group, const MappedWindow& window, const MappedWindow& destination,
                                      AllReduceArgs args);
std::shared_ptr<Call> make_all_gather(Group& group, const MappedWindow& window, AllGatherArgs args);

/// A hash of fields that must agree between the ranks.
class Signature {
 public:
  template <class... Fields>
  Signature& add(Fields... fields) {
    (mix(static_cast<std::uint64_t>(fields)), ...);
    return *this;
  }
  std::uint64_t value() const { return value_; }

 private:
  void mix(std::uint64_t field) {
    value_ = (value_ ^ field) * 0x9e3779b97f4a7c15u;
    value_ ^= value_ >> 29;
  }
  std::uint64_t value_ = 0x2545f4914f6cdd1du;
};

/// Throws std::invalid_argument unless ascending, disjoint and not before `origin`.
void check_interval(const char* what, const Interval& interval, std::size_t not_before);

}  // namespace bellows
