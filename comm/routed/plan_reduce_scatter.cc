#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>

#include "collectives/arguments.h"
#include "fold.h"
#include "routed/plans.h"
#include "routed/segments.h"

namespace bellows {
namespace {

// Partial sums climb a tree of ranks towards each owner (routes.h). On the way a rank adds what it has and what its
// children sent, where those are neighbours in the lane tree, and passes on what is left; the owner adds the rest
// together with its carries. Bytes per rank and message counts: docs/collectives.md.
class ReduceScatterPlan {
 public:
  ReduceScatterPlan(const Routes& routes, int rank, const RoutedWindow& window, ReduceScatterArgs args)
      : routes_(routes),
        me_(rank),
        n_(routes.world_size()),
        window_(window),
        args_(std::move(args)),
        element_(size_of(args_.dtype)),
        exchange_(std::make_shared<Exchange>()) {
    owned_ = check_reduce_scatter(args_, me_, window_.bytes).owned;
    segments_.emplace(owned_, element_);
    messages_.emplace(*segments_, n_, [this](int owner, int from, int to) -> std::optional<int> {
      if (owner == from || routes_.next(owner, from) != to) return std::nullopt;
      return routes_.height(owner, from);
    });
  }

  std::shared_ptr<Exchange> build(std::shared_ptr<ReduceScatterPlan> self) {
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
  /// A partial sum that comes into a fold.
  struct Source {
    LaneSpan lanes;
    enum Kind { kOwn, kReceived, kCarry } kind = kOwn;
    std::size_t offset = 0;  // kOwn: of the piece in the window; kReceived: in the message
    int receive = -1;
    const LocalPiece* carry = nullptr;
  };
  /// One addition of one segment of one owner.
  struct Fold {
    int owner = 0;
    std::size_t segment = 0;
    int wave = 0;
    std::vector<Source> sources;
    FoldProgram program;
    std::vector<std::size_t> out;  // offsets in scratch of the results; empty at the owner
  };

  /// What rank `r` sends towards `owner`: its own pieces and those of the ranks below it, folded as far as they go.
  const std::vector<LaneSpan>& out_spans(int owner, int r) {
    auto& known = out_spans_[{owner, r}];
    if (known.has_value()) return *known;
    std::vector<LaneSpan> spans;
    for (const LanePiece& piece : args_.pieces)
      if (piece.rank == r) spans.push_back(piece.lanes);
    for (const int child : routes_.children(owner, r)) {
      const auto& below = out_spans(owner, child);
      spans.insert(spans.end(), below.begin(), below.end());
    }
    std::sort(spans.begin(), spans.end(), [](LaneSpan a, LaneSpan b) { return a.first < b.first; });
    auto& slot = out_spans_[{owner, r}];  // the recursion may have moved `known`
    slot = make_fold(spans, false).spans;
    return *slot;
  }

  std::size_t bytes_of(int owner, std::size_t s) const { return (*segments_)[owner][s].count * element_; }

  std::size_t bytes_of(const PairMessages::Message& message, int from, std::size_t s) {
    std::size_t bytes = 0;
    for (const int owner : message.owners) bytes += bytes_of(owner, s) * out_spans(owner, from).size();
    return bytes;
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
    // What comes in: (owner, child) -> receive and place in it.
    struct Incoming {
      int receive;
      std::size_t offset;
    };
    std::map<std::pair<int, int>, Incoming> incoming;
    for (int i = 1; i < n_; ++i) {
      const int child = (me_ + n_ - i) % n_;
      for (const PairMessages::Message& message : messages_->of(child, me_, s)) {
        const std::size_t bytes = bytes_of(message, child, s);
        if (bytes == 0) continue;  // a rank without lanes
        Exchange::Receive receive;
        receive.peer = child;
        receive.key = message.key;
        receive.bytes = bytes;
        receive.scratch = take(bytes);
        receive.wave = wave;
        const int index = x.add_receive(std::move(receive));
        std::size_t offset = 0;
        for (const int owner : message.owners) {
          incoming[{owner, child}] = {index, offset};
          offset += bytes_of(owner, s) * out_spans(owner, child).size();
        }
      }
    }
    // What goes out: a fold (or a plain copy) for each owner writes straight into the message.
    // Starting behind itself, each rank sends to another peer than the others do at that time.
    for (int i = 1; i < n_; ++i) {
      const int peer = (me_ + i) % n_;
      for (const PairMessages::Message& message : messages_->of(me_, peer, s)) {
        const std::size_t bytes = bytes_of(message, me_, s);
        if (bytes == 0) continue;
        Exchange::Send send;
        send.peer = peer;
        send.key = message.key;
        send.bytes = bytes;
        send.wave = wave;
        if (message.owners.size() == 1) send.data = ready_in_window(message.owners.front(), s);
        if (send.data) {
          x.add_send(std::move(send));
          continue;
        }
        send.scratch = take(bytes);
        std::size_t at = send.scratch;
        const int index = x.add_send(std::move(send));
        for (const int owner : message.owners) {
          Fold fold;
          fold.owner = owner;
          fold.segment = s;
          fold.wave = wave;
          for (std::size_t p = 0; p < out_spans(owner, me_).size(); ++p) {
            fold.out.push_back(at);
            at += bytes_of(owner, s);
          }
          x.send_after_task(index, add_fold(std::move(fold), incoming));
        }
      }
    }
    if (s < (*segments_)[me_].size() && !args_.results.empty()) {
      Fold fold;
      fold.owner = me_;
      fold.segment = s;
      fold.wave = wave;
      add_fold(std::move(fold), incoming);
    }
    x.waves[wave].scratch_bytes = scratch;
  }

  /// The only piece of a leaf, if it stands together in the window: sent from where it is.
  const std::byte* ready_in_window(int owner, std::size_t s) const {
    if (!routes_.children(owner, me_).empty() || (*segments_)[owner][s].parts.size() != 1) return nullptr;
    const LanePiece* only = nullptr;
    for (const LanePiece& piece : args_.pieces) {
      if (piece.rank != me_) continue;
      if (only) return nullptr;
      only = &piece;
    }
    return only ? window_.own + only->offset +
                      ((*segments_)[owner][s].parts.front().interval.begin - args_.origin) * element_
                : nullptr;
  }

  template <class Incoming>
  int add_fold(Fold fold, const Incoming& incoming) {
    Exchange& x = *exchange_;
    std::vector<int> receives;
    for (const LanePiece& piece : args_.pieces)
      if (piece.rank == me_) fold.sources.push_back({piece.lanes, Source::kOwn, piece.offset, -1, nullptr});
    for (const int child : routes_.children(fold.owner, me_)) {
      const auto& spans = out_spans(fold.owner, child);
      if (spans.empty()) continue;
      const auto& [receive, offset] = incoming.at({fold.owner, child});
      receives.push_back(receive);
      for (std::size_t p = 0; p < spans.size(); ++p)
        fold.sources.push_back(
            {spans[p], Source::kReceived, offset + p * bytes_of(fold.owner, fold.segment), receive, nullptr});
    }
    const bool mine = fold.owner == me_;
    if (mine)
      for (const LocalPiece& carry : args_.carry) fold.sources.push_back({carry.lanes, Source::kCarry, 0, -1, &carry});
    std::sort(fold.sources.begin(), fold.sources.end(),
              [](const Source& a, const Source& b) { return a.lanes.first < b.lanes.first; });
    std::vector<LaneSpan> spans;
    for (const Source& source : fold.sources) spans.push_back(source.lanes);
    fold.program = make_fold(spans, mine && args_.complete);
    Exchange::Task task;
    task.wave = fold.wave;
    task.run = [plan = self_, x = exchange_.get(), fold = std::move(fold)] { plan->run(*x, fold); };
    const int index = x.add_task(std::move(task));
    for (const int receive : receives) x.task_after_receive(index, receive);
    return index;
  }

  void run(const Exchange& x, const Fold& fold) const {
    const Slice& segment = (*segments_)[fold.owner][fold.segment];
    std::vector<const std::byte*> sources(fold.sources.size());
    std::vector<std::byte*> results(fold.program.results.size());
    for (const Slice::Part& part : segment.parts) {
      const std::size_t element = part.interval.begin - args_.origin;
      for (std::size_t i = 0; i < sources.size(); ++i) {
        const Source& source = fold.sources[i];
        if (source.kind == Source::kOwn)
          sources[i] = window_.own + source.offset + element * element_;
        else if (source.kind == Source::kReceived)
          sources[i] = x.received(source.receive) + source.offset + part.in_segment * element_;
        else
          sources[i] = local(*source.carry, element, part.compact);
      }
      for (std::size_t i = 0; i < results.size(); ++i)
        results[i] = fold.owner == me_ ? local(args_.results[i], element, part.compact)
                                       : x.scratch(fold.wave) + fold.out[i] + part.in_segment * element_;
      run_fold(fold.program, args_.dtype, sources.data(), results.data(), part.interval.size());
    }
  }

  std::byte* local(const LocalPiece& piece, std::size_t element, std::size_t compact) const {
    return static_cast<std::byte*>(piece.data) + (piece.in_place ? element : compact) * element_;
  }

  const Routes routes_;
  const int me_, n_;
  const RoutedWindow window_;
  ReduceScatterArgs args_;
  const std::size_t element_;
  std::vector<std::vector<Interval>> owned_;  // by rank
  std::optional<OwnerSegments> segments_;
  std::optional<PairMessages> messages_;  // a message for each height of the trees
  std::map<std::pair<int, int>, std::optional<std::vector<LaneSpan>>> out_spans_;
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<ReduceScatterPlan> self_;
};

}  // namespace

std::shared_ptr<Exchange> plan_reduce_scatter(const Routes& routes, int rank, const RoutedWindow& window,
                                              ReduceScatterArgs args) {
  auto plan = std::make_shared<ReduceScatterPlan>(routes, rank, window, std::move(args));
  return plan->build(plan);
}

}  // namespace bellows
