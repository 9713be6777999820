#include "routed/routed_communicator.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <stdexcept>

#include "bellows/base/error.h"
#include "bellows/comm/costs.h"
#include "futex.h"
#include "group.h"
#include "routed/plans.h"
#include "routed/router.h"
#include "routed/selection.h"
#include "routed/wire_mixed.h"
#include "routed/wire_mpi.h"
#include "routed/wire_shm.h"
#include "routed/wire_ucx.h"

namespace bellows {
namespace {

class ExchangeState final : public Work::State {
 public:
  ExchangeState(std::shared_ptr<Router> router, std::shared_ptr<Exchange> exchange)
      : router_(std::move(router)), exchange_(std::move(exchange)) {}
  bool done() const override { return exchange_->state.load(std::memory_order_acquire) != Exchange::kUnderWay; }
  void wait() override { router_->wait(exchange_); }
  Nanos finished_at() const override { return done() ? exchange_->finished_at : 0; }

 private:
  const std::shared_ptr<Router> router_;
  const std::shared_ptr<Exchange> exchange_;
};

/// For people: "all_reduce 'norm' of 32 B".
std::shared_ptr<Exchange> titled(std::shared_ptr<Exchange> exchange, CallKind kind, std::size_t bytes = 0) {
  exchange->title = name_of(kind);
  if (exchange->what != exchange->title) exchange->title += " '" + exchange->what + "'";
  if (bytes > 0) exchange->title += " of " + human_bytes(static_cast<double>(bytes));
  return exchange;
}

class RoutedCommunicator final : public Communicator {
 public:
  RoutedCommunicator(std::shared_ptr<Router> router, ShmWire* lender, Places places, Selection selection,
                     const char* transport)
      : router_(std::move(router)),
        lender_(lender),
        places_(std::move(places)),
        selection_(std::move(selection)),
        transport_(transport) {}
  ~RoutedCommunicator() override { router_->close(); }

  const World& world() const override { return router_->world(); }
  const char* transport() const override { return transport_; }

  Window expose(const SharedMemory& memory, std::size_t offset, std::size_t bytes) override {
    if (offset > memory.size() || bytes > memory.size() - offset)
      throw std::invalid_argument("cannot expose " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                                  " of a memory of " + std::to_string(memory.size()));
    router_->exclusively([&] {
      router_->wire().remember(memory.bytes());
      if (lender_) lender_->lend(memory);
    });
    RoutedWindow& window = windows_.emplace_back();
    window.own = memory.data() + offset;
    for (const std::uint64_t size : swap(static_cast<std::uint64_t>(bytes), "expose", CallKind::kExpose))
      window.bytes.push_back(size);
    return {static_cast<int>(windows_.size()) - 1};
  }

  Work reduce_scatter(ReduceScatterArgs args) override {
    const RoutedWindow& window = known(args.window, args.what);
    std::size_t bytes = 0;
    for (const OwnedInterval& owned : args.owned) bytes += owned.interval.size() * size_of(args.dtype);
    return start(
        titled(plan_reduce_scatter(routes(CostedCall::kReduceScatter, bytes), world().rank, window, std::move(args)),
               CallKind::kReduceScatter, bytes));
  }
  Work all_gather(AllGatherArgs args) override {
    const RoutedWindow& window = known(args.window, args.what);
    std::size_t bytes = 0;
    for (const auto& owned : args.owned) bytes += owned.interval.size() * size_of(args.dtype);
    return start(titled(plan_all_gather(routes(CostedCall::kAllGather, bytes), world().rank, window, std::move(args)),
                        CallKind::kAllGather, bytes));
  }

  void all_reduce_sum(std::span<double> data, const char* what) override {
    const int n = world().world_size;
    std::vector<double> all(data.size() * static_cast<std::size_t>(n));
    std::vector<std::span<std::byte>> places;
    for (int r = 0; r < n; ++r)
      places.push_back(std::as_writable_bytes(std::span(all).subspan(data.size() * r, data.size())));
    router_->run(
        titled(plan_swap(world().rank, n, std::as_bytes(data), places, what), CallKind::kAllReduce, data.size_bytes()));
    for (std::size_t i = 0; i < data.size(); ++i) {
      double sum = all[i];
      for (int r = 1; r < n; ++r) sum += all[data.size() * r + i];
      data[i] = sum;
    }
  }

  std::vector<std::string> all_gather_blobs(const std::string& blob, const char* what) override {
    const int n = world().world_size;
    const std::vector<std::uint64_t> sizes = swap(static_cast<std::uint64_t>(blob.size()), what, CallKind::kBlobs);
    std::vector<std::string> blobs;
    for (int r = 0; r < n; ++r) blobs.emplace_back(sizes[r], '\0');
    std::vector<std::span<const std::byte>> send(n, std::as_bytes(std::span(blob)));
    std::vector<std::span<std::byte>> receive;
    for (int r = 0; r < n; ++r) receive.push_back(std::as_writable_bytes(std::span(blobs[r])));
    router_->run(titled(plan_all_to_all(world().rank, send, receive, what), CallKind::kBlobs));
    return blobs;
  }

  void broadcast(std::span<std::byte> data, int root, const char* what) override {
    if (root < 0 || root >= world().world_size)
      throw std::invalid_argument(std::string(what) + ": root " + std::to_string(root) + " in a world of " +
                                  std::to_string(world().world_size));
    router_->run(
        titled(plan_broadcast(world().rank, world().world_size, data, root, what), CallKind::kBroadcast, data.size()));
  }

  void all_to_all_v(const std::vector<std::span<const std::byte>>& send,
                    const std::vector<std::span<std::byte>>& receive, const char* what) override {
    const int n = world().world_size, me = world().rank;
    if (static_cast<int>(send.size()) != n || static_cast<int>(receive.size()) != n)
      throw std::invalid_argument(std::string(what) + ": " + std::to_string(send.size()) + " parts to send and " +
                                  std::to_string(receive.size()) + " to receive in a world of " + std::to_string(n));
    // Sizes first: ranks that disagree about one are told so, rather than waiting for what never comes.
    std::vector<std::uint64_t> sizes;
    for (const auto& part : send) sizes.push_back(part.size());
    std::vector<std::uint64_t> theirs(static_cast<std::size_t>(n) * n);
    std::vector<std::span<std::byte>> places;
    for (int r = 0; r < n; ++r)
      places.push_back(std::as_writable_bytes(std::span(theirs).subspan(static_cast<std::size_t>(n) * r, n)));
    router_->run(titled(plan_swap(me, n, std::as_bytes(std::span(sizes)), places, what), CallKind::kAllToAll));
    for (int r = 0; r < n; ++r) {
      const std::uint64_t sent = theirs[static_cast<std::size_t>(n) * r + me];
      if (sent != receive[r].size())
        router_->raise(CommError::Kind::kAborted, what, {r, me},
                       std::string(what) + ": rank " + std::to_string(r) + " sends " + std::to_string(sent) +
                           " bytes, rank " + std::to_string(me) + " expects " + std::to_string(receive[r].size()));
    }
    router_->run(titled(plan_all_to_all(me, send, receive, what), CallKind::kAllToAll));
  }
  void barrier(const char* what) override {
    router_->run(titled(plan_barrier(world().rank, world().world_size, what), CallKind::kBarrier));
  }

  void abort(const std::string& why) override {
    router_->abort(why);
    abort_parts(why);
  }
  void report(const CommError& error) override {
    try {
      router_->raise(error.kind(), error.operation(), error.ranks(), error.what());
    } catch (const CommError&) {
    }
  }
  std::exception_ptr failure() const override { return router_->failure(); }
  CommStats stats() const override { return router_->stats(); }

 private:
  const RoutedWindow& known(Window window, const char* what) const {
    if (window.id < 0 || window.id >= static_cast<int>(windows_.size()))
      throw std::invalid_argument(std::string(what) + ": window " + std::to_string(window.id) +
                                  " was not made by this communicator");
    return windows_[static_cast<std::size_t>(window.id)];
  }
  std::vector<std::uint64_t> swap(std::uint64_t mine, const char* what, CallKind kind) {
    const int n = world().world_size;
    std::vector<std::uint64_t> all(n);
    std::vector<std::span<std::byte>> places;
    for (int r = 0; r < n; ++r) places.push_back(std::as_writable_bytes(std::span(all).subspan(r, 1)));
    router_->run(titled(plan_swap(world().rank, n, std::as_bytes(std::span(&mine, 1)), places, what), kind));
    return all;
  }
  const Routes& routes(CostedCall call, std::size_t bytes) {
    const Algorithm algorithm = selection_.choose(call, bytes, places_);
    const auto it = routes_.find(algorithm);
    if (it != routes_.end()) return it->second;
    return routes_.emplace(algorithm, Routes(algorithm, places_)).first->second;
  }
  Work start(std::shared_ptr<Exchange> exchange) {
    return Work(std::make_shared<ExchangeState>(router_, router_->submit(std::move(exchange), true)));
  }

  const std::shared_ptr<Router> router_;
  ShmWire* const lender_;  // belongs to the router's wire; null if memory is not lent
  const Places places_;
  const Selection selection_;
  const char* const transport_;
  std::map<Algorithm, Routes> routes_;
  std::deque<RoutedWindow> windows_;
};

constexpr const char* kNoCosts = "no costs: ";

/// Ranks per core on the host where most share one.
double crowding(const std::vector<Introduction>& ranks) {
  std::map<std::string, std::vector<std::string>> cores;
  for (const Introduction& rank : ranks) cores[rank.machine].push_back(rank.cores);
  double most = 1;
  for (const auto& [machine, lists] : cores)
    most = std::max(most, static_cast<double>(lists.size()) / std::max(1, count_cores(lists)));
  return most;
}

}  // namespace

std::unique_ptr<Communicator> connect_routed(const World& world, Bootstrap& bootstrap, const CommOptions& options,
                                             const std::vector<Introduction>& ranks, WireKind kind, const char* name,
                                             Deadline deadline) {
  Places places;
  std::map<std::string, int> hosts;
  for (const Introduction& rank : ranks)
    places.host.push_back(hosts.try_emplace(rank.machine, static_cast<int>(hosts.size())).first->second);

  std::unique_ptr<Wire> wire;
  ShmWire* lender = nullptr;
  switch (kind) {
    case WireKind::kShm: {
      auto shm = std::make_unique<ShmWire>(world);
      lender = shm.get();
      wire = std::move(shm);
      break;
    }
    case WireKind::kMixed: {
      std::vector<bool> near;
      for (int r = 0; r < world.world_size; ++r) near.push_back(places.host[r] == places.host[world.rank]);
      auto shm = std::make_unique<ShmWire>(world);
      lender = shm.get();
      wire = std::make_unique<MixedWire>(world, near, std::move(shm), make_ucx_wire_between_hosts(world));
      break;
    }
    case WireKind::kUcx:
      wire = make_ucx_wire(world);
      break;
    case WireKind::kMpi:
      wire = make_mpi_wire(world);
      break;
  }
  auto lifelines = std::make_unique<Lifelines>(world, options.bind);

  // What rank 0 knows of costs is what all choose by; that it cannot read its file is told to all instead.
  std::string known;
  try {
    std::optional<CollectiveCosts> measured;
    if (world.rank == 0 && options.algorithm == "auto")
      measured = load_costs(options.calibration.empty() ? default_calibration_path() : options.calibration, name);
    known = encode(measured.value_or(built_in_costs(name)));
  } catch (const UserError& error) {
    known = std::string(kNoCosts) + error.what();
    std::replace(known.begin(), known.end(), '\n', ' ');
  }
  const std::string mine = lifelines->address() + "\n" + known + "\n" + wire->address();
  std::vector<std::string> lines, costs, wires;
  for (const std::string& blob : bootstrap.exchange(world, "connect routes", mine, deadline)) {
    const std::size_t line_end = blob.find('\n'), end = blob.find('\n', line_end + 1);
    if (line_end == std::string::npos || end == std::string::npos)
      throw UserError("a rank of another version of Bellows tried to connect");
    lines.push_back(blob.substr(0, line_end));
    costs.push_back(blob.substr(line_end + 1, end - line_end - 1));
    wires.push_back(blob.substr(end + 1));
  }
  if (costs[0].starts_with(kNoCosts)) throw UserError("rank 0: " + costs[0].substr(std::strlen(kNoCosts)));
  lifelines->connect(lines, deadline);
  try {
    wire->connect(wires);
  } catch (const std::runtime_error& error) {
    throw CommError(CommError::Kind::kPeerLost, "connect", {}, world.generation,
                    std::string("connect: ") + error.what() + " (generation " + std::to_string(world.generation) + ")");
  }
  std::vector<std::string> cores;
  for (const Introduction& rank : ranks)
    if (rank.machine == ranks[world.rank].machine) cores.push_back(rank.cores);
  const bool may_spin = count_cores(cores) >= static_cast<int>(cores.size());
  std::function<void(const SharedMemory&)> lend;
  if (lender) lend = [lender](const SharedMemory& memory) { lender->lend(memory); };
  auto router = std::make_shared<Router>(world, std::move(wire), std::move(lifelines), std::move(lend),
                                         options.timeout_s, may_spin);
  auto hello = plan_barrier(world.rank, world.world_size, "connect");
  hello->timeout = std::max<Nanos>(deadline.remaining(), 1);
  router->run(hello);
  return std::make_unique<RoutedCommunicator>(std::move(router), lender, std::move(places),
                                              Selection(options.algorithm, decode_costs(costs[0]), crowding(ranks)),
                                              name);
}

}  // namespace bellows
