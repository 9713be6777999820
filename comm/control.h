#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "bellows/base/clock.h"

namespace bellows {

// The control segment: 2 MiB (one huge page) that a rank makes at connect and every peer of the generation maps.
//   Control              counters, the bell, the first error, the ring of announced calls
//   payload slots        small data that travels with an announcement
//   two staging halves   larger data of broadcast, all-to-all and blobs, piece by piece
// The owner writes everything except `bell` (rung by peers) and `error` (written once by whoever sees it first).
//
// Calls are numbered 1, 2, 3 … alike on every rank. `posted = k` in the ring says: call k is announced and my memory
// for it may be read. `finished[k % ring] = k` says: I use nothing of peers for call k any more; for each call by
// itself, since urgent ones overtake. Numbers wrap.

using Sequence = std::uint32_t;
/// True if `counter` has come to `sequence` (both wrap).
inline bool reached(Sequence counter, Sequence sequence) { return static_cast<std::int32_t>(counter - sequence) >= 0; }

enum class CallKind : std::uint32_t {
  kConnect = 1,
  kExpose,
  kReduceScatter,
  kAllGather,
  kAllReduce,
  kBlobs,
  kBroadcast,
  kAllToAll,
  kBarrier
};
inline const char* name_of(CallKind kind) {
  constexpr const char* kNames[] = {"connect",          "expose",    "reduce_scatter", "all_gather", "all_reduce",
                                    "all_gather_blobs", "broadcast", "all_to_all_v",   "barrier"};
  const auto i = static_cast<std::uint32_t>(kind) - 1;
  return i < 9 ? kNames[i] : "unknown call";
}

/// As much of `text` as fits, with a zero behind it.
template <std::size_t kSize>
void set_text(char (&to)[kSize], const std::string& text) {
  to[text.copy(to, kSize - 1)] = 0;
}

/// What a rank announces about one of its calls.
struct alignas(64) Announcement {
  std::atomic<Sequence> posted{0};  ///< on one cache line with what the others look at first
  std::uint64_t signature = 0;      ///< hash of everything that must agree between the ranks
  std::uint64_t bytes = 0;          ///< size of the call as a person would name it
  std::int64_t posted_at = 0;
  std::uint64_t total = 0;  ///< bytes brought by this rank, for calls whose sizes differ by rank
  CallKind kind = CallKind::kBarrier;
  std::uint32_t payload_slot = 0;
  std::uint32_t payload_bytes = 0;
  std::uint32_t more = 0;  ///< another round follows
  char what[80] = {};
};

/// The first error of the generation, copied into every rank's segment.
struct ErrorRecord {
  static constexpr std::uint32_t kNone = 0, kWriting = 1, kSet = 2;
  std::atomic<std::uint32_t> state{kNone};
  std::uint32_t kind = 0;
  std::array<std::uint64_t, 16> ranks{};  ///< bit set, 1,024 ranks
  char operation[128] = {};
  char message[896] = {};
};

struct Control {
  static constexpr std::uint32_t kRing = 256;
  static constexpr std::uint32_t kPayloadSlots = 64;
  static constexpr std::size_t kPayloadBytes = 4096;
  static constexpr std::size_t kStagingBegin = std::size_t{384} << 10;
  static constexpr std::size_t kSegmentBytes = std::size_t{2} << 20;
  static constexpr std::size_t kStagingHalf = (kSegmentBytes - kStagingBegin) / 2;
  static constexpr std::uint32_t kNobody = ~std::uint32_t{0};
  static constexpr std::uint32_t kAnybody = kNobody - 1;

  alignas(64) std::atomic<std::uint32_t> left{0};  ///< the communicator was dropped
  std::atomic<std::uint32_t> inside{0};            ///< how many calls are in the middle of using peers' windows
  /// The owner sleeps on `bell`, and says whose progress it waits for: only that peer rings.
  alignas(64) std::atomic<std::uint32_t> bell{0};
  std::atomic<std::uint32_t> awaits_post_of{kNobody};
  std::atomic<std::uint32_t> awaits_finish_of{kNobody};
  alignas(64) std::array<std::atomic<Sequence>, kRing> finished{};
  alignas(64) ErrorRecord error;
  alignas(64) Announcement ring[kRing];

  bool has_posted(Sequence sequence) const {
    return reached(ring[sequence % kRing].posted.load(std::memory_order_seq_cst), sequence);
  }
  bool has_finished(Sequence sequence) const {
    return reached(finished[sequence % kRing].load(std::memory_order_seq_cst), sequence);
  }
  Announcement& announcement(Sequence sequence) { return ring[sequence % kRing]; }
  std::byte* payload(std::uint32_t slot) {
    return reinterpret_cast<std::byte*>(this) + kStagingBegin - (kPayloadSlots - slot) * kPayloadBytes;
  }
  std::byte* staging(std::uint32_t half) {
    return reinterpret_cast<std::byte*>(this) + kStagingBegin + half * kStagingHalf;
  }
};
static_assert(sizeof(Control) + Control::kPayloadSlots * Control::kPayloadBytes <= Control::kStagingBegin);
static_assert(Control::kStagingHalf % 64 == 0);

}  // namespace bellows
