#include "collectives/staged.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "copy.h"

namespace bellows {
namespace {

std::shared_ptr<Call> make_call(CallKind kind, const char* what, std::uint64_t bytes, std::uint64_t signature) {
  auto call = std::make_shared<Call>();
  call->kind = kind;
  call->what = what;
  call->bytes = bytes;
  call->signature = signature;
  return call;
}

// ---- All-to-all ----
// In each round a rank fills a staging half with as much as fits for everybody who still lacks something:
//   half    = entry * world_size, data
//   entry   = total u64, offset u32, bytes u32        what the half holds for that rank
// The round's announcement says whether another one follows; the call is over when no rank has more.

struct Entry {
  std::uint64_t total = 0;
  std::uint32_t offset = 0;
  std::uint32_t bytes = 0;
};

class Outgoing {
 public:
  Outgoing(const World& world, const std::vector<std::span<const std::byte>>& send)
      : me_(world.rank),
        send_(send),
        sent_(send.size(), 0),
        data_begin_((send.size() * sizeof(Entry) + 63) / 64 * 64) {}

  /// Fills `half` with the next round; true if something is left for another.
  bool fill(std::byte* half) {
    std::vector<Entry> table(send_.size());
    std::size_t at = data_begin_, waiting = 0;
    for (std::size_t r = 0; r < send_.size(); ++r) waiting += lacks(r) > 0 ? 1 : 0;
    for (std::size_t r = 0; r < send_.size(); ++r) {
      if (static_cast<int>(r) != me_) table[r].total = send_[r].size();
      if (lacks(r) == 0) continue;
      const std::size_t fair = (Control::kStagingHalf - at) / waiting-- / 64 * 64;
      // Ranks that are sent the same memory share one copy of it.
      const std::size_t same = same_as_before(r);
      if (same != r && sent_[same] - table[same].bytes == sent_[r]) {
        table[r].offset = table[same].offset;
        table[r].bytes = table[same].bytes;
      } else {
        table[r].offset = static_cast<std::uint32_t>(at);
        table[r].bytes = static_cast<std::uint32_t>(std::min(fair, lacks(r)));
        copy_bytes(half + at, send_[r].data() + sent_[r], table[r].bytes, false);
        at += (table[r].bytes + 63) / 64 * 64;
      }
      sent_[r] += table[r].bytes;
    }
    std::memcpy(half, table.data(), table.size() * sizeof(Entry));
    for (std::size_t r = 0; r < send_.size(); ++r)
      if (lacks(r) > 0) return true;
    return false;
  }

 private:
  std::size_t lacks(std::size_t r) const { return static_cast<int>(r) == me_ ? 0 : send_[r].size() - sent_[r]; }
  std::size_t same_as_before(std::size_t r) const {
    for (std::size_t q = 0; q < r; ++q)
      if (static_cast<int>(q) != me_ && send_[q].data() == send_[r].data() && send_[q].size() == send_[r].size())
        return q;
    return r;
  }

  const int me_;
  const std::vector<std::span<const std::byte>>& send_;
  std::vector<std::size_t> sent_;
  const std::size_t data_begin_;
};

void all_to_all(Group& group, CallKind kind, const std::vector<std::span<const std::byte>>& send,
                const std::vector<std::span<std::byte>>& receive, const char* what) {
  const int me = group.world().rank, world_size = group.world().world_size;
  Outgoing outgoing(group.world(), send);
  std::vector<std::size_t> got(world_size, 0);
  std::size_t bytes = 0;
  for (const auto& part : send) bytes += part.size();
  if (!send[me].empty()) std::memmove(receive[me].data(), send[me].data(), send[me].size());
  for (bool more = true; more;) {
    auto call = make_call(kind, what, bytes, 0);
    call->staging_half = group.take_staging();
    call->more = outgoing.fill(group.own().staging(call->staging_half));
    more = call->more;
    Call* const raw = call.get();  // the hook belongs to the call
    call->on_arrival = [&group, &receive, &got, &more, me, what, raw](int r) {
      const Announcement& theirs = group.announcement(r, *raw);
      const std::byte* const half = group.peer(r).staging(theirs.payload_slot % 2);
      Entry entry;
      std::memcpy(&entry, half + static_cast<std::size_t>(me) * sizeof(Entry), sizeof entry);
      if (entry.total != receive[r].size())
        group.raise(CommError::Kind::kAborted, what, {std::min(r, me), std::max(r, me)},
                    "mismatched collectives: " + std::string(what) + ": rank " + std::to_string(r) + " sends " +
                        std::to_string(entry.total) + " bytes, rank " + std::to_string(me) + " expects " +
                        std::to_string(receive[r].size()));
      copy_bytes(receive[r].data() + got[r], half + entry.offset, entry.bytes, false);
      got[r] += entry.bytes;
      group.count_bytes_from_peers(entry.bytes);
      if (theirs.more) more = true;
    };
    group.run(call);
  }
}

/// Announces a small payload and hands everybody's to `take`.
template <class Take>
void exchange_payloads(Group& group, const std::shared_ptr<Call>& call, const Take& take) {
  Call* const raw = call.get();
  call->on_arrival = [&group, raw, &take](int r) {
    const auto payload = group.payload(r, *raw);
    group.count_bytes_from_peers(payload.size());
    take(r, payload, group.announcement(r, *raw).total);
  };
  group.run(call);
}

}  // namespace

void staged_all_to_all(Group& group, const std::vector<std::span<const std::byte>>& send,
                       const std::vector<std::span<std::byte>>& receive, const char* what) {
  const auto world_size = static_cast<std::size_t>(group.world().world_size);
  const int me = group.world().rank;
  if (send.size() != world_size || receive.size() != world_size)
    throw std::invalid_argument(std::string(what) + ": " + std::to_string(send.size()) + " parts to send and " +
                                std::to_string(receive.size()) + " to receive in a world of " +
                                std::to_string(world_size));
  if (send[me].size() != receive[me].size())
    throw std::invalid_argument(std::string(what) + ": this rank sends itself " + std::to_string(send[me].size()) +
                                " bytes and expects " + std::to_string(receive[me].size()));
  all_to_all(group, CallKind::kAllToAll, send, receive, what);
}

void staged_broadcast(Group& group, std::span<std::byte> data, int root, const char* what) {
  const World& world = group.world();
  if (root < 0 || root >= world.world_size)
    throw std::invalid_argument(std::string(what) + ": root " + std::to_string(root) + " in a world of " +
                                std::to_string(world.world_size));
  std::size_t at = 0;
  do {
    const std::size_t bytes = std::min(data.size() - at, Control::kStagingHalf);
    auto call =
        make_call(CallKind::kBroadcast, what, data.size(), (static_cast<std::uint64_t>(root) << 48) ^ data.size());
    call->only_from = root;
    Call* const raw = call.get();
    if (world.rank == root) {
      call->staging_half = group.take_staging();
      copy_bytes(group.own().staging(call->staging_half), data.data() + at, bytes, false);
    } else {
      call->on_arrival = [&, raw, bytes](int r) {
        copy_bytes(data.data() + at, group.peer(r).staging(group.announcement(r, *raw).payload_slot % 2), bytes, false);
        group.count_bytes_from_peers(bytes);
      };
    }
    group.run(call);
    at += bytes;
  } while (at < data.size());
}

std::vector<std::string> staged_blobs(Group& group, const std::string& blob, const char* what) {
  const World& world = group.world();
  const bool fits = blob.size() <= Control::kPayloadBytes;
  std::vector<std::string> blobs(world.world_size);
  blobs[world.rank] = blob;
  auto call = make_call(CallKind::kBlobs, what, 0, 0);
  call->total = blob.size();
  if (fits) call->payload = std::as_bytes(std::span(blob));
  bool large = !fits;
  exchange_payloads(group, call, [&](int r, std::span<const std::byte> payload, std::uint64_t total) {
    if (total > Control::kPayloadBytes) {
      large = true;
      blobs[r].resize(total);
    } else {
      blobs[r].assign(reinterpret_cast<const char*>(payload.data()), payload.size());
    }
  });
  if (!large) return blobs;
  // Now that everybody knows who brings more than fits, those blobs follow.
  std::vector<std::span<const std::byte>> send(world.world_size);
  std::vector<std::span<std::byte>> receive(world.world_size);
  for (int r = 0; r < world.world_size; ++r) {
    if (r == world.rank) continue;
    if (!fits) send[r] = std::as_bytes(std::span(blob));
    if (blobs[r].size() > Control::kPayloadBytes) receive[r] = std::as_writable_bytes(std::span(blobs[r]));
  }
  all_to_all(group, CallKind::kBlobs, send, receive, what);
  return blobs;
}

void staged_all_reduce(Group& group, std::span<double> data, const char* what) {
  const World& world = group.world();
  const std::size_t n = data.size();
  std::vector<double> all(n * world.world_size);
  std::copy(data.begin(), data.end(), all.begin() + static_cast<std::ptrdiff_t>(n * world.rank));
  if (data.size_bytes() <= Control::kPayloadBytes) {
    auto call = make_call(CallKind::kAllReduce, what, data.size_bytes(), n);
    call->payload = std::as_bytes(data);
    exchange_payloads(group, call, [&](int r, std::span<const std::byte> payload, std::uint64_t) {
      if (!payload.empty()) std::memcpy(&all[n * r], payload.data(), payload.size());
    });
  } else {
    std::vector<std::span<const std::byte>> send(world.world_size, std::as_bytes(data));
    std::vector<std::span<std::byte>> receive;
    for (int r = 0; r < world.world_size; ++r)
      receive.push_back(std::as_writable_bytes(std::span(all).subspan(n * r, n)));
    all_to_all(group, CallKind::kAllReduce, send, receive, what);
  }
  // In rank order on every rank, so everybody has the same bits.
  for (std::size_t i = 0; i < n; ++i) {
    double sum = all[i];
    for (int r = 1; r < world.world_size; ++r) sum += all[n * r + i];
    data[i] = sum;
  }
}

void barrier(Group& group, const char* what) { group.run(make_call(CallKind::kBarrier, what, 0, 0)); }

}  // namespace bellows
