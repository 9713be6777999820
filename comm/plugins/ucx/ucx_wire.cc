#include "ucx_wire.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <map>
#include <set>
#include <stdexcept>

#include "bellows/base/clock.h"
#include "ucx_context.h"

namespace bellows {
namespace {

constexpr double kPatience = 1.0;         // seconds for what has been sent to go out
constexpr double kForcedPatience = 0.03;  // for connections closed by force; some never answer, whose peers have gone

/// Matching is exact: call, key and the sender's rank fill the 64 bits of a UCX tag.
///   63        32 31      16 15     0
///   | call      | key      | sender |
constexpr int kMostRanks = 1 << 16;
ucp_tag_t tag_of(WireTag tag, int sender) {
  return static_cast<ucp_tag_t>(tag.call) << 32 | static_cast<ucp_tag_t>(tag.key) << 16 |
         static_cast<ucp_tag_t>(sender);
}
constexpr ucp_tag_t kWholeTag = ~ucp_tag_t{0};

class UcxWire final : public Wire {
 public:
  UcxWire(const World& world, bool between_hosts);
  ~UcxWire() override;

  std::string address() const override { return address_; }
  void connect(const std::vector<std::string>& addresses) override;
  void remember(std::span<const std::byte> memory) override;
  void forget(std::span<const std::byte> memory) override;
  void send(int rank, WireTag tag, std::span<const std::byte> message, Transfer& transfer) override;
  void receive(int rank, WireTag tag, std::span<std::byte> place, Transfer& transfer) override;
  bool progress() override;
  void wait(Nanos limit, std::span<const int> also) override;
  void wake() override;
  void cancel_all() override;
  std::string describe() const override;

 private:
  struct Peer {
    UcxWire* wire = nullptr;
    int rank = 0;
    ucp_ep_h endpoint = nullptr;
    std::string broken;  // the error of the endpoint, once it has one
  };
  /// A transfer that UCX works on.
  struct Pending {
    UcxWire* wire = nullptr;
    Transfer* transfer = nullptr;
    void* request = nullptr;
    int rank = 0;
    bool receiving = false;
    std::size_t size = 0;
    std::list<Pending>::iterator self;
  };

  static void on_sent(void* request, ucs_status_t status, void* pending);
  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* pending);
  static void on_broken(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  /// Null, and the transfer failed, if the wire cannot be used for that rank.
  Pending* begin(int rank, Transfer& transfer, std::size_t size, bool receiving);
  void started(Pending& pending, ucs_status_ptr_t request);
  void finish(Pending& pending, ucs_status_t status, std::size_t arrived);
  ucp_mem_h handle_of(const std::byte* memory, std::size_t size) const;
  void give_up_on_broken_peers();
  /// Progresses until `done` or `until`.
  template <class Done>
  void drive(const Deadline& until, const Done& done);
  void flush();
  void close_worker();

  const World world_;
  const ucp_context_h context_;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;  // the worker's
  int wake_fd_ = -1;
  std::string address_;
  std::string transports_;
  std::vector<Peer> peers_;  // by rank; at fixed addresses once connected
  bool newly_broken_ = false;
  std::list<Pending> pending_, spare_;  // spare: kept so that a transfer allocates nothing
  struct Registered {
    std::size_t size;
    ucp_mem_h handle;
  };
  std::map<const std::byte*, Registered> registered_;
};

UcxWire::UcxWire(const World& world, bool between_hosts) : world_(world), context_(ucx_context(between_hosts)) {
  if (world.world_size > kMostRanks)
    throw std::runtime_error("UCX: at most " + std::to_string(kMostRanks) + " ranks, not " +
                             std::to_string(world.world_size));
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  params.flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK;  // of messages that nobody received any more
  check_ucx(ucp_worker_create(context_, &params, &worker_), "ucp_worker_create");
  try {
    check_ucx(ucp_worker_get_efd(worker_, &event_fd_), "ucp_worker_get_efd");
    ucp_address_t* bytes = nullptr;
    std::size_t size = 0;
    check_ucx(ucp_worker_get_address(worker_, &bytes, &size), "ucp_worker_get_address");
    address_.assign(reinterpret_cast<const char*>(bytes), size);
    ucp_worker_release_address(worker_, bytes);
    wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (wake_fd_ < 0) throw std::runtime_error("eventfd: out of descriptors");
  } catch (...) {
    ucp_worker_destroy(worker_);
    throw;
  }
}

UcxWire::~UcxWire() {
  if (worker_ && pending_.empty()) flush();
  cancel_all();
  for (const auto& [memory, registered] : registered_) ucp_mem_unmap(context_, registered.handle);
  close(wake_fd_);
}

void UcxWire::connect(const std::vector<std::string>& addresses) {
  peers_.resize(addresses.size());
  for (std::size_t r = 0; r < addresses.size(); ++r) {
    Peer& peer = peers_[r];
    peer.wire = this;
    peer.rank = static_cast<int>(r);
    if (addresses[r].empty() || peer.rank == world_.rank) continue;
    ucp_ep_params_t params = {};
    params.field_mask =
        UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(addresses[r].data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler = {on_broken, &peer};
    check_ucx(ucp_ep_create(worker_, &params, &peer.endpoint), "no way to rank " + std::to_string(r));
  }
  if (worker_) ucp_worker_progress(worker_);
}

void UcxWire::remember(std::span<const std::byte> memory) {
  if (memory.empty() || registered_.contains(memory.data())) return;
  ucp_mem_map_params_t params = {};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = const_cast<std::byte*>(memory.data());
  params.length = memory.size();
  ucp_mem_h handle = nullptr;
  // Only a hint: where the memory cannot be pinned, UCX registers or copies piece by piece.
  if (ucp_mem_map(context_, &params, &handle) == UCS_OK) registered_[memory.data()] = {memory.size(), handle};
}

void UcxWire::forget(std::span<const std::byte> memory) {
  const auto found = registered_.find(memory.data());
  if (found == registered_.end()) return;
  ucp_mem_unmap(context_, found->second.handle);
  registered_.erase(found);
}

ucp_mem_h UcxWire::handle_of(const std::byte* memory, std::size_t size) const {
  auto after = registered_.upper_bound(memory);
  if (after == registered_.begin()) return nullptr;
  const auto& [begin, registered] = *--after;
  return memory + size <= begin + registered.size ? registered.handle : nullptr;
}

UcxWire::Pending* UcxWire::begin(int rank, Transfer& transfer, std::size_t size, bool receiving) {
  transfer.data = nullptr;
  transfer.error.clear();
  const bool known = rank >= 0 && static_cast<std::size_t>(rank) < peers_.size() && peers_[rank].endpoint;
  if (!worker_ || !known) {
    transfer.state = Transfer::kFailed;
    transfer.error = !worker_ ? "the wire is closed" : "rank " + std::to_string(rank) + " is not reached over UCX";
    return nullptr;
  }
  // What a lost peer sent before may lie here already: receiving is tried all the same.
  if (!receiving && !peers_[rank].broken.empty()) {
    transfer.state = Transfer::kFailed;
    transfer.error = peers_[rank].broken;
    return nullptr;
  }
  if (spare_.empty()) spare_.emplace_back();
  pending_.splice(pending_.end(), spare_, spare_.begin());
  Pending& pending = pending_.back();
  pending = {this, &transfer, nullptr, rank, receiving, size, std::prev(pending_.end())};
  transfer.state = Transfer::kPending;
  return &pending;
}

void UcxWire::started(Pending& pending, ucs_status_ptr_t request) {
  if (!UCS_PTR_IS_PTR(request)) return finish(pending, UCS_PTR_STATUS(request), pending.size);
  if (pending.transfer->state != Transfer::kPending) return;  // has called back already, and the request is gone
  pending.request = request;
  if (pending.receiving && !peers_[pending.rank].broken.empty()) newly_broken_ = true;
}

void UcxWire::finish(Pending& pending, ucs_status_t status, std::size_t arrived) {
  Transfer& transfer = *pending.transfer;
  const std::string& broken = peers_[pending.rank].broken;
  if (status == UCS_OK && arrived == pending.size) {
    transfer.state = Transfer::kDone;
  } else {
    const std::string peer = "rank " + std::to_string(pending.rank);
    transfer.state = Transfer::kFailed;
    if (status == UCS_OK || status == UCS_ERR_MESSAGE_TRUNCATED)
      transfer.error =
          peer + " sent a message of another size than the expected " + std::to_string(pending.size) + " bytes";
    else if (!broken.empty())
      transfer.error = broken;
    else
      transfer.error = "UCX, " + peer + ": " + ucs_status_string(status);
  }
  spare_.splice(spare_.begin(), pending_, pending.self);
}

void UcxWire::on_sent(void* request, ucs_status_t status, void* pending) {
  auto& sent = *static_cast<Pending*>(pending);
  sent.wire->finish(sent, status, sent.size);
  ucp_request_free(request);
}

void UcxWire::on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* pending) {
  auto& received = *static_cast<Pending*>(pending);
  received.wire->finish(received, status, info->length);
  ucp_request_free(request);
}

void UcxWire::on_broken(void* peer, ucp_ep_h, ucs_status_t status) {
  auto& lost = *static_cast<Peer*>(peer);
  lost.broken = "UCX, rank " + std::to_string(lost.rank) + ": " + ucs_status_string(status);
  lost.wire->newly_broken_ = true;
}

void UcxWire::send(int rank, WireTag tag, std::span<const std::byte> message, Transfer& transfer) {
  Pending* pending = begin(rank, transfer, message.size(), false);
  if (!pending) return;
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = on_sent;
  param.user_data = pending;
  if (ucp_mem_h handle = handle_of(message.data(), message.size())) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    param.memh = handle;
  }
  const ucs_status_ptr_t request =
      ucp_tag_send_nbx(peers_[rank].endpoint, message.data(), message.size(), tag_of(tag, world_.rank), &param);
  started(*pending, request);
}

void UcxWire::receive(int rank, WireTag tag, std::span<std::byte> place, Transfer& transfer) {
  Pending* pending = begin(rank, transfer, place.size(), true);
  if (!pending) return;
  transfer.data = place.data();
  ucp_request_param_t param = {};
  // Always by callback: UCX 1.13 does not tell the size of a message that had come before.
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.cb.recv = on_received;
  param.user_data = pending;
  if (ucp_mem_h handle = handle_of(place.data(), place.size())) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    param.memh = handle;
  }
  const ucs_status_ptr_t request =
      ucp_tag_recv_nbx(worker_, place.data(), place.size(), tag_of(tag, rank), kWholeTag, &param);
  started(*pending, request);
}

bool UcxWire::progress() {
  if (!worker_) return false;
  bool moved = ucp_worker_progress(worker_) != 0;
  if (newly_broken_) {
    // What had come before the connection broke is still taken in.
    while (ucp_worker_progress(worker_) != 0) {
    }
    give_up_on_broken_peers();
    moved = true;
  }
  return moved;
}

// UCX ends what it was sending to a lost peer by itself; receives wait for any sender, so they are ended here.
void UcxWire::give_up_on_broken_peers() {
  newly_broken_ = false;
  std::vector<void*> hopeless;
  for (const Pending& pending : pending_)
    if (pending.receiving && !peers_[pending.rank].broken.empty()) hopeless.push_back(pending.request);
  for (void* request : hopeless) ucp_request_cancel(worker_, request);
}

void UcxWire::wait(Nanos limit, std::span<const int> also) {
  if (!worker_ || limit <= 0) return;
  const ucs_status_t armed = ucp_worker_arm(worker_);
  if (armed == UCS_ERR_BUSY) return;  // something is there to be progressed
  std::vector<pollfd> watched = {{event_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  for (const int fd : also) watched.push_back({fd, POLLIN, 0});
  const timespec longest = {static_cast<time_t>(limit / 1'000'000'000), static_cast<long>(limit % 1'000'000'000)};
  ppoll(watched.data(), watched.size(), &longest, nullptr);
  if (watched[1].revents) {
    eventfd_t count;
    eventfd_read(wake_fd_, &count);
  }
}

void UcxWire::wake() { eventfd_write(wake_fd_, 1); }

template <class Done>
void UcxWire::drive(const Deadline& until, const Done& done) {
  while (!done() && !until.passed()) {
    if (ucp_worker_progress(worker_) != 0) continue;
    if (ucp_worker_arm(worker_) != UCS_OK) continue;
    pollfd watched = {event_fd_, POLLIN, 0};
    poll(&watched, 1, 10);
  }
}

// UCX calls a send done when it holds a copy; what it still holds goes out before the connection is closed.
void UcxWire::flush() {
  ucp_request_param_t param = {};
  const ucs_status_ptr_t request = ucp_worker_flush_nbx(worker_, &param);
  if (!UCS_PTR_IS_PTR(request)) return;
  drive(Deadline::after(kPatience), [&] { return ucp_request_check_status(request) != UCS_INPROGRESS; });
  ucp_request_free(request);
}

void UcxWire::cancel_all() {
  if (!worker_) return;
  std::vector<void*> receives;
  for (const Pending& pending : pending_)
    if (pending.receiving) receives.push_back(pending.request);
  for (void* request : receives) ucp_request_cancel(worker_, request);
  close_worker();
  // Without a worker nothing moves any more.
  while (!pending_.empty()) finish(pending_.front(), UCS_ERR_CANCELED, 0);
}

void UcxWire::close_worker() {
  const Deadline until = Deadline::after(kForcedPatience);
  std::vector<ucs_status_ptr_t> closing;
  for (Peer& peer : peers_) {
    if (!peer.endpoint) continue;
    ucp_request_param_t param = {};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t request = ucp_ep_close_nbx(peer.endpoint, &param);
    if (UCS_PTR_IS_PTR(request)) closing.push_back(request);
    peer.endpoint = nullptr;
  }
  drive(until, [&] {
    return pending_.empty() && std::all_of(closing.begin(), closing.end(), [](ucs_status_ptr_t request) {
             return ucp_request_check_status(request) != UCS_INPROGRESS;
           });
  });
  for (const ucs_status_ptr_t request : closing) ucp_request_free(request);
  ucp_worker_destroy(worker_);
  worker_ = nullptr;
}

// UCX 1.13 tells which transports an endpoint uses only in print: "lane[0]:  3:tcp/lo.0 md[0] ...".
std::string UcxWire::describe() const {
  std::set<std::string> used;
  for (const Peer& peer : peers_) {
    if (!worker_ || !peer.endpoint) continue;
    char* text = nullptr;
    std::size_t size = 0;
    std::FILE* file = open_memstream(&text, &size);
    if (!file) break;
    ucp_ep_print_info(peer.endpoint, file);
    std::fclose(file);
    const std::string printed(text, size);
    std::free(text);
    for (std::size_t at = 0; (at = printed.find("lane[", at)) != std::string::npos; ++at) {
      const std::size_t colon = printed.find(':', printed.find(':', at) + 1);
      const std::size_t end = printed.find_first_of(" \n", colon);
      if (end == std::string::npos) break;
      std::string name = printed.substr(colon + 1, end - colon - 1);
      name = name.substr(0, name.find('.'));
      used.insert(name);
    }
  }
  std::string list;
  for (const std::string& name : used) list += (list.empty() ? " (" : ", ") + name;
  return "ucx" + (list.empty() ? "" : list + ")");
}

}  // namespace

std::unique_ptr<Wire> make_wire_over_ucx(const World& world, bool between_hosts) {
  return std::make_unique<UcxWire>(world, between_hosts);
}

}  // namespace bellows
