#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>

#include "collectives/arguments.h"
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
    check_all_gather(args_, me_, window_.bytes);
    owned_.resize(n_);
    std::vector<std::vector<Interval>> intervals(n_);
    for (const AllGatherArgs::Owned& owned : args_.owned) {
      if (owned.interval.size() == 0) continue;
      owned_[owned.rank].push_back(owned);
      intervals[owned.rank].push_back(owned.interval);
    }
    segments_.emplace(intervals, element_);
    messages_.emplace(*segments_, n_, [this](int owner, int from, int to) -> std::optional<int> {
      if (owner == to || routes_.next(owner, to) != from) return std::nullopt;
      return routes_.depth(owner, from);
    });
  }

  std::shared_ptr<Exchange> build(std::shared_ptr<AllGatherPlan> self) {
    self_ = std::move(self);
    Exchange& x = *exchange_;
    x.what = args_.what;
    x.priority = args_.priority;
    x.signature = signature_of(args_).add(routes_.algorithm()).value();
    for (std::size_t s = 0; s < segments_->waves(); ++s) add_wave(s);
    self_.reset();  // tasks hold it from here on
    return std::move(exchange_);
  }

 private:
  /// Bytes and pieces of memory.
  std::pair<std::size_t, std::size_t> size_of_message(const PairMessages::Message& message, std::size_t s) const {
    std::size_t bytes = 0, parts = 0;
    for (const int owner : message.owners) {
      bytes += (*segments_)[owner][s].count * element_;
      parts += (*segments_)[owner][s].parts.size();
    }
    return {bytes, parts};
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
      for (const PairMessages::Message& message : messages_->of(peer, me_, s)) {
        const auto [bytes, parts] = size_of_message(message, s);
        Exchange::Receive receive;
        receive.peer = peer;
        receive.key = message.key;
        receive.bytes = bytes;
        receive.wave = wave;
        if (parts == 1)
          receive.place = place_of((*segments_)[message.owners.front()][s].parts.front());
        else
          receive.scratch = take(bytes);
        const int index = x.add_receive(std::move(receive));
        Exchange::Task task;
        task.wave = wave;
        task.run = [plan = self_, x = exchange_.get(), index, owners = message.owners, s] {
          const std::byte* from = x->received(index);
          for (const int owner : owners)
            for (const Slice::Part& part : (*plan->segments_)[owner][s].parts) {
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
      for (const PairMessages::Message& message : messages_->of(me_, peer, s)) {
        const auto [bytes, parts] = size_of_message(message, s);
        Exchange::Send send;
        send.peer = peer;
        send.key = message.key;
        send.bytes = bytes;
        send.wave = wave;
        const bool as_it_stands = parts == 1;
        if (as_it_stands)
          send.data = source_of(message.owners.front(), (*segments_)[message.owners.front()][s].parts.front());
        else
          send.scratch = take(bytes);
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
            for (const Slice::Part& part : (*plan->segments_)[owner][s].parts) {
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
    if (s < (*segments_)[me_].size()) {
      Exchange::Task task;
      task.wave = wave;
      task.run = [plan = self_, s] {
        for (const Slice::Part& part : (*plan->segments_)[plan->me_][s].parts) {
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
    return window_.own + source_offset(args_, owned_[owner][part.list_index]) + part.in_interval * element_;
  }

  const Routes routes_;
  const int me_, n_;
  const RoutedWindow window_;
  const AllGatherArgs args_;
  const std::size_t element_;
  std::byte* const destination_;
  std::vector<std::vector<AllGatherArgs::Owned>> owned_;  // by rank
  std::optional<OwnerSegments> segments_;
  std::optional<PairMessages> messages_;  // a message for each distance from the owner
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
