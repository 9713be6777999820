#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>

#include "collectives/windows.h"
#include "copy.h"
#include "routed/plans.h"
#include "routed/segments.h"

namespace bellows {
namespace {

// The data of each owner descends its tree of ranks (routes.h): whoever has it passes it on to its children.
class AllGatherPlan {
 public:
  AllGatherPlan(const Routes& routes, int rank, const RoutedWindow& window, AllGatherArgs args)
      : routes_(routes),
        me_(rank),
        n_(routes.world_size()),
        window_(window),
        args_(std::move(args)),
        element_(size_of(args_.dtype)),
        destination_(args_.destination ? static_cast<std::byte*>(args_.destination)
                                       : (window.own ? window.own + args_.offset : nullptr)),
        exchange_(std::make_shared<Exchange>()) {
    check();
    cut();
  }

  std::shared_ptr<Exchange> build(std::shared_ptr<AllGatherPlan> self) {
    self_ = std::move(self);
    Exchange& x = *exchange_;
    x.what = args_.what;
    x.priority = args_.priority;
    x.signature = signature();
    for (std::size_t s = 0; s < segment_count_; ++s) add_wave(s);
    self_.reset();  // tasks hold it from here on
    return std::move(exchange_);
  }

 private:
  void fail(const std::string& why) const { throw std::invalid_argument(std::string(args_.what) + ": " + why); }

  std::size_t source_offset(const AllGatherArgs::Owned& owned) const {
    return owned.source_offset != AllGatherArgs::npos ? owned.source_offset
                                                      : args_.offset + (owned.interval.begin - args_.origin) * element_;
  }

  void check() {
    owned_.resize(n_);
    std::size_t at = args_.origin;
    for (const AllGatherArgs::Owned& owned : args_.owned) {
      check_interval(args_.what, owned.interval, at);
      at = owned.interval.end;
      if (owned.rank < 0 || owned.rank >= n_)
        fail("interval of rank " + std::to_string(owned.rank) + " in a world of " + std::to_string(n_));
      const std::size_t needed = source_offset(owned) + owned.interval.size() * element_;
      if (owned.interval.size() == 0) continue;
      if (needed > window_.bytes[owned.rank])
        fail("elements up to " + std::to_string(owned.interval.end) + " need " + std::to_string(needed) +
             " bytes of the window of rank " + std::to_string(owned.rank) + ", which has " +
             std::to_string(window_.bytes[owned.rank]));
      owned_[owned.rank].push_back(owned);
    }
    const std::size_t end = args_.offset + (at - args_.origin) * element_;
    if (at > args_.origin && !args_.destination && end > window_.bytes[me_])
      fail("elements up to " + std::to_string(at) + " do not fit into this rank's own window of " +
           std::to_string(window_.bytes[me_]) + " bytes");
  }

  std::uint64_t signature() const {
    Signature signature;
    signature.add(args_.window.id, args_.offset, args_.origin, args_.dtype, routes_.algorithm());
    for (const AllGatherArgs::Owned& owned : args_.owned)
      signature.add(owned.rank, owned.interval.begin, owned.interval.end, owned.source_offset);
    return signature.value();
  }

  void cut() {
    std::size_t largest = 0;
    std::vector<std::vector<Interval>> intervals(n_);
    for (int r = 0; r < n_; ++r) {
      std::size_t share = 0;
      for (const auto& owned : owned_[r]) {
        intervals[r].push_back(owned.interval);
        share += owned.interval.size() * element_;
      }
      largest = std::max(largest, share);
    }
    const std::size_t elements = std::max<std::size_t>(1, segment_bytes(largest, n_) / element_);
    for (int r = 0; r < n_; ++r) {
      segments_.push_back(cut_segments(intervals[r], elements));
      segment_count_ = std::max(segment_count_, segments_.back().size());
    }
  }

  struct Message {
    std::uint16_t key = 0;
    std::vector<int> owners;
    std::size_t bytes = 0;
    std::size_t parts = 0;
  };
  /// What travels from `from` to its child `to`, one message for each distance from the owner.
  std::vector<Message> messages(int from, int to, std::size_t s) {
    const auto [it, fresh] = depths_.try_emplace({from, to});
    if (fresh)
      for (int owner = 0; owner < n_; ++owner)
        if (owner != to && !segments_[owner].empty() && routes_.next(owner, to) == from)
          it->second[routes_.depth(owner, from)].push_back(owner);
    std::vector<Message> result;
    std::size_t index = 0;
    for (const auto& [depth, owners] : it->second) {
      Message message;
      message.key = static_cast<std::uint16_t>(s * it->second.size() + index++);
      for (const int owner : owners) {
        if (s >= segments_[owner].size()) continue;
        message.owners.push_back(owner);
        message.bytes += segments_[owner][s].count * element_;
        message.parts += segments_[owner][s].parts.size();
      }
      if (message.bytes > 0) result.push_back(std::move(message));
    }
    return result;
  }

  void add_wave(std::size_t s) {
    Exchange& x = *exchange_;
    const int wave = x.add_wave();
    std::size_t scratch = 0;
    const auto take = [&](std::size_t bytes) {
      const std::size_t at = scratch;
      scratch += (bytes + 63) / 64 * 64;
      return at;
    };
    std::map<int, int> has;  // owner -> task after which its segment stands in this rank's destination
    for (int i = 1; i < n_; ++i) {
      const int peer = (me_ + n_ - i) % n_;
      for (const Message& message : messages(peer, me_, s)) {
        Exchange::Receive receive;
        receive.peer = peer;
        receive.key = message.key;
        receive.bytes = message.bytes;
        receive.wave = wave;
        if (message.parts == 1)
          receive.place = place_of(segments_[message.owners.front()][s].parts.front());
        else
          receive.scratch = take(message.bytes);
        const int index = x.add_receive(std::move(receive));
        Exchange::Task task;
        task.wave = wave;
        task.run = [plan = self_, x = exchange_.get(), index, owners = message.owners, s] {
          const std::byte* from = x->received(index);
          for (const int owner : owners)
            for (const Slice::Part& part : plan->segments_[owner][s].parts) {
              const std::size_t bytes = part.interval.size() * plan->element_;
              if (plan->place_of(part) != from) copy_bytes(plan->place_of(part), from, bytes, false);
              from += bytes;
            }
        };
        const int unpack = x.add_task(std::move(task));
        x.task_after_receive(unpack, index);
        for (const int owner : message.owners) has[owner] = unpack;
      }
    }
    for (int i = 1; i < n_; ++i) {
      const int peer = (me_ + i) % n_;
      for (const Message& message : messages(me_, peer, s)) {
        Exchange::Send send;
        send.peer = peer;
        send.key = message.key;
        send.bytes = message.bytes;
        send.wave = wave;
        const bool as_it_stands = message.parts == 1;
        if (as_it_stands)
          send.data = source_of(message.owners.front(), segments_[message.owners.front()][s].parts.front());
        else
          send.scratch = take(message.bytes);
        const std::size_t at = send.scratch;
        const int index = x.add_send(std::move(send));
        if (as_it_stands) {
          if (message.owners.front() != me_) x.send_after_task(index, has.at(message.owners.front()));
          continue;
        }
        Exchange::Task task;
        task.wave = wave;
        task.run = [plan = self_, x = exchange_.get(), wave, at, owners = message.owners, s] {
          std::byte* to = x->scratch(wave) + at;
          for (const int owner : owners)
            for (const Slice::Part& part : plan->segments_[owner][s].parts) {
              const std::size_t bytes = part.interval.size() * plan->element_;
              copy_bytes(to, plan->source_of(owner, part), bytes, false);
              to += bytes;
            }
        };
        const int pack = x.add_task(std::move(task));
        for (const int owner : message.owners)
          if (owner != me_) x.task_after_task(pack, has.at(owner));
        x.send_after_task(index, pack);
      }
    }
    if (s < segments_[me_].size()) {
      Exchange::Task task;
      task.wave = wave;
      task.run = [plan = self_, s] {
        for (const Slice::Part& part : plan->segments_[plan->me_][s].parts) {
          const std::byte* const from = plan->source_of(plan->me_, part);
          if (plan->place_of(part) != from)
            copy_bytes(plan->place_of(part), from, part.interval.size() * plan->element_, false);
        }
      };
      x.add_task(std::move(task));
    }
    x.waves[wave].scratch_bytes = scratch;
  }

  std::byte* place_of(const Slice::Part& part) const {
    return destination_ + (part.interval.begin - args_.origin) * element_;
  }
  const std::byte* source_of(int owner, const Slice::Part& part) const {
    if (owner != me_) return place_of(part);
    return window_.own + source_offset(owned_[owner][part.list_index]) + part.in_interval * element_;
  }

  const Routes routes_;
  const int me_, n_;
  const RoutedWindow window_;
  const AllGatherArgs args_;
  const std::size_t element_;
  std::byte* const destination_;
  std::vector<std::vector<AllGatherArgs::Owned>> owned_;  // by rank
  std::vector<std::vector<Slice>> segments_;              // by owner
  std::size_t segment_count_ = 0;
  std::map<std::pair<int, int>, std::map<int, std::vector<int>>> depths_;
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<AllGatherPlan> self_;
};

}  // namespace

std::shared_ptr<Exchange> plan_all_gather(const Routes& routes, int rank, const RoutedWindow& window,
                                          AllGatherArgs args) {
  auto plan = std::make_shared<AllGatherPlan>(routes, rank, window, std::move(args));
  return plan->build(plan);
}

}  // namespace bellows
