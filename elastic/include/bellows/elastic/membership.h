#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/base/world.h"

namespace bellows {

/// One rank process as the job knows it. `id` is unique for the life of the job, never reused.
struct MemberInfo {
  std::string id;
  std::string host;
  std::int64_t pid = 0;
  bool operator==(const MemberInfo&) const = default;
};

/// Who trains: a value that only the coordinator makes. Rank = index in `members`.
struct Membership {
  std::uint64_t generation = 0;
  std::vector<MemberInfo> members;
  /// Members of the previous generation that are alive but not in this one: they hand their chunks over, then exit 0.
  std::vector<MemberInfo> leaving;
  bool planned = true;                  ///< false: a member was lost
  std::string reason;                   ///< one sentence for people
  std::int64_t decided_unix_ms = 0;

  int world_size() const { return static_cast<int>(members.size()); }
  /// The world of member `id` among `members`; nothing if it is not among them.
  std::optional<World> world_of(const std::string& id) const;
  /// The world of the hand-over: members first, then those leaving. Nothing if `id` is in neither.
  std::optional<World> transition_world_of(const std::string& id) const;
};

}  // namespace bellows
