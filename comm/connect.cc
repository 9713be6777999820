#include <sys/stat.h>

#include <algorithm>
#include <sstream>

#include "bellows/base/error.h"
#include "bellows/comm/communicator.h"
#include "futex.h"
#include "gpu/gpu_communicator.h"
#include "group.h"
#include "routed/routed_communicator.h"
#include "routed/selection.h"
#include "routed/wire_mpi.h"
#include "routed/wire_ucx.h"
#include "transports/transport.h"

namespace bellows {

std::unique_ptr<Communicator> make_host_communicator(std::shared_ptr<Group> group, const char* transport);

namespace {
constexpr const char* kVersionLine = "bellows-comm 2";
}

// introduction = "bellows-comm 2\n" wanted "\n" host "\n" machine "\n" cores "\n" wires "\n" pid start fd inode token
std::string Introduction::encode() const {
  std::ostringstream out;
  out << kVersionLine << '\n'
      << wanted << '\n'
      << host << '\n'
      << machine << '\n'
      << cores << '\n'
      << wires << '\n'
      << pid << ' ' << start_time << ' ' << fd << ' ' << inode << ' ' << token;
  return out.str();
}

Introduction Introduction::decode(const std::string& blob) {
  std::istringstream in(blob);
  std::string version;
  Introduction introduction;
  std::getline(in, version);
  std::getline(in, introduction.wanted);
  std::getline(in, introduction.host);
  std::getline(in, introduction.machine);
  std::getline(in, introduction.cores);
  std::getline(in, introduction.wires);
  in >> introduction.pid >> introduction.start_time >> introduction.fd >> introduction.inode >> introduction.token;
  if (version != kVersionLine || !in)
    throw UserError("a rank of another version of Bellows tried to connect (it said '" + version + "')");
  return introduction;
}

std::uint64_t inode_of(int fd) {
  struct stat status;
  return fd >= 0 && fstat(fd, &status) == 0 ? status.st_ino : 0;
}

namespace {

std::string known_transports() {
  std::string names = "auto";
  for (const TransportEntry& entry : transport_table()) names += std::string(", ") + entry.name;
  return names;
}

const TransportEntry* find_transport(const std::string& name) {
  for (const TransportEntry& entry : transport_table())
    if (name == entry.name) return &entry;
  return nullptr;
}

UserError cannot_connect(const TransportEntry& entry, const std::string& why) {
  return UserError(std::string("transport '") + entry.name + "' cannot connect this job: " + why);
}

// The same answer on every rank: a function of what all ranks said.
const TransportEntry& choose(const std::vector<Introduction>& ranks) {
  for (std::size_t r = 1; r < ranks.size(); ++r)
    if (ranks[r].wanted != ranks[0].wanted)
      throw UserError("ranks want different transports or algorithms: rank 0 '" + ranks[0].wanted + "', rank " +
                      std::to_string(r) + " '" + ranks[r].wanted + "'");
  const std::string wanted = ranks[0].wanted.substr(0, ranks[0].wanted.find(' '));
  if (const TransportEntry* named = find_transport(wanted)) {
    const std::string why = named->unfit(ranks);
    if (!why.empty()) throw cannot_connect(*named, why);
    return *named;
  }
  std::string reasons;
  for (const TransportEntry& entry : transport_table()) {
    const std::string why = entry.unfit(ranks);
    if (why.empty()) return entry;
    reasons += std::string("; ") + entry.name + ": " + why;
  }
  throw UserError("no transport can connect this job" + reasons);
}

}  // namespace

std::unique_ptr<Communicator> connect(const World& world, Bootstrap& bootstrap, const CommOptions& options) {
  if (options.transport != "auto" && !find_transport(options.transport))
    throw UserError("unknown transport '" + options.transport + "'; known: " + known_transports());
  if (const TransportEntry* named = find_transport(options.transport); named && named->gpu)
    if (const std::string why = named->obstacle(); !why.empty()) throw cannot_connect(*named, why);
  if (options.reduction == Reduction::kFast && options.transport != "nccl")
    throw UserError("reduction 'fast' is offered by transport nccl only, not by '" + options.transport + "'");
  const Selection checked(options.algorithm);  // an unknown name is told before anybody is waited for
  if (world.world_size < 1 || world.world_size > 1024 || world.rank < 0 || world.rank >= world.world_size)
    throw UserError("rank " + std::to_string(world.rank) + " of " + std::to_string(world.world_size) +
                    " is not a place that can be connected; worlds have 1 to 1024 ranks");
  const Deadline deadline = Deadline::after(options.connect_timeout_s);
  const auto segment = std::make_shared<SharedMemory>(Control::kSegmentBytes);
  new (segment->data()) Control;
  Introduction self = introduce_this_process();
  self.wanted = options.transport + " " + options.algorithm;
  if (options.reduction == Reduction::kFast) self.wanted += " fast";
  self.wires = std::string(ucx_present() ? "ucx" : "none") + (mpi_obstacle().empty() ? " mpi" : "");
  self.fd = segment->fd();
  self.cores = allowed_cores();
  self.inode = inode_of(segment->fd());
  self.token = publish_segment(segment);

  std::vector<Introduction> ranks;
  for (const std::string& blob : bootstrap.exchange(world, "connect", self.encode(), deadline))
    ranks.push_back(Introduction::decode(blob));
  const TransportEntry& transport = choose(ranks);
  if (transport.gpu)
    return connect_gpu(world, bootstrap, options, open_gpu_host(transport.name, world), transport.name, deadline);
  // Where peers' memory can be read, the direct way moves everything once: others are for comparison.
  const bool by_messages = !transport.reach || (options.algorithm != "auto" && options.algorithm != "direct");
  if (by_messages)
    return connect_routed(world, bootstrap, options, ranks, transport.reach ? WireKind::kShm : transport.wire,
                          transport.name, deadline);
  std::vector<std::string> cores;
  for (const Introduction& rank : ranks) cores.push_back(rank.cores);
  // Where ranks outnumber processors, looking at a counter takes them from the peer that is to move it.
  const bool may_spin = count_cores(cores) >= world.world_size;
  std::shared_ptr<Group> group;
  try {
    group =
        std::make_shared<Group>(world, transport.reach(world, ranks, segment), segment, options.timeout_s, may_spin);
  } catch (const UnreachablePeer& peer) {
    throw CommError(CommError::Kind::kPeerLost, "connect", {peer.rank}, world.generation,
                    "connect: rank " + std::to_string(peer.rank) + " " + peer.why + " (generation " +
                        std::to_string(world.generation) + ")");
  }
  // Nobody goes on before everybody has mapped everybody: from here on a rank that goes is missed.
  auto call = std::make_shared<Call>();
  call->kind = CallKind::kConnect;
  call->what = "connect";
  call->signature = world.generation * 1024 + static_cast<std::uint64_t>(world.world_size);
  call->timeout = std::max<Nanos>(deadline.remaining(), 1);
  group->run(call);
  return make_host_communicator(std::move(group), transport.name);
}

}  // namespace bellows
