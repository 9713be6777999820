#pragma once
#include <memory>
#include <string>
#include <vector>

#include "bellows/base/memory.h"
#include "bellows/base/world.h"
#include "bellows/comm/communicator.h"
#include "control.h"

namespace bellows {

/// What a rank tells about itself at connect: enough for any transport to reach it.
struct Introduction {
  std::string wanted;   ///< CommOptions::transport
  std::string host;     ///< name, for messages
  std::string machine;  ///< same for processes that see the same /proc
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;  ///< of the process, so that a reused pid is not taken for it
  std::int32_t fd = -1;          ///< control segment
  std::uint64_t inode = 0;
  std::uint64_t token = 0;  ///< of the control segment within the process
  std::string cores;        ///< processors that the rank may use, one hex digit for four
  std::string wires;        ///< what it can send messages with besides shared memory: "ucx", "mpi", both or "none"

  std::string encode() const;
  static Introduction decode(const std::string& blob);
};

/// Thrown while reaching for peers: which one failed and why. connect() makes a CommError of it.
struct UnreachablePeer {
  int rank;
  std::string why;
};

/// Where a rank's window stands, as told to peers at expose.
struct WindowPlace {
  std::byte* address = nullptr;  ///< in the owner's address space
  std::uint64_t offset = 0;      ///< in the segment
  std::uint64_t bytes = 0;
  std::uint64_t segment_bytes = 0;
  std::uint64_t inode = 0;
  std::int32_t fd = -1;
};

/// How one rank reaches the memory of its peers and learns of their death: all in which transports between processes
/// or threads of one host differ. Belongs to one communicator; what it maps lives as long as it does.
class Reach {
 public:
  virtual ~Reach() = default;
  virtual Control* control(int rank) = 0;
  /// The start of a peer's window in this address space. Throws std::runtime_error if it cannot be had.
  virtual std::byte* window(int rank, const WindowPlace& place) = 0;
  /// False once the peer can no longer run. Cheap enough to ask 50 times a second.
  virtual bool alive(int rank) = 0;
  /// Ends a peer that is out of the generation but stopped in the middle of writing into this rank's memory: it must
  /// not go on with that in a later generation. False if this transport cannot.
  virtual bool fence(int rank) = 0;
  /// Peers' windows are the owners' own mappings: an owner must not go while a peer reads.
  virtual bool shares_address_space() const = 0;
  /// "process 1234 on host", for messages.
  virtual std::string describe(int rank) const = 0;
};

/// A rank's own control segment, shared with threads of this process until the last of them drops it.
using Segment = std::shared_ptr<SharedMemory>;

/// What carries the messages of a transport that works by messages (routed/).
enum class WireKind { kShm, kUcx, kMpi, kMixed };

struct TransportEntry {
  const char* name;
  /// Empty if this host can use it, else why not.
  std::string (*obstacle)();
  const char* note;
  /// Empty if these ranks can be connected by it, else why not.
  std::string (*unfit)(const std::vector<Introduction>& ranks);
  /// Null for transports that work by messages over `wire`.
  std::unique_ptr<Reach> (*reach)(const World& world, const std::vector<Introduction>& ranks, Segment own);
  WireKind wire = WireKind::kShm;
  bool gpu = false;  ///< for windows on devices (gpu/), beside another transport for everything else
};

/// All transports compiled in, the most direct first: "auto" takes the first that fits.
const std::vector<TransportEntry>& transport_table();

std::string inproc_unfit(const std::vector<Introduction>& ranks);
std::unique_ptr<Reach> make_inproc_reach(const World& world, const std::vector<Introduction>& ranks, Segment own);
/// Makes a segment known to other threads of this process under the returned token for as long as it lives.
std::uint64_t publish_segment(const Segment& segment);

std::string shm_obstacle();
std::string shm_unfit(const std::vector<Introduction>& ranks);
std::unique_ptr<Reach> make_shm_reach(const World& world, const std::vector<Introduction>& ranks, Segment own);

std::string ucx_unfit(const std::vector<Introduction>& ranks);
std::string mpi_unfit(const std::vector<Introduction>& ranks);
std::string mixed_obstacle();
std::string mixed_unfit(const std::vector<Introduction>& ranks);

/// Identifies the file behind a descriptor; 0 if there is none.
std::uint64_t inode_of(int fd);

/// Another process' descriptor, opened anew through /proc; checked to be the very file that was announced. Throws
/// std::runtime_error.
int open_peer_fd(std::int64_t pid, int fd, std::uint64_t inode);

/// Machine, pid and start time of this process.
Introduction introduce_this_process();

}  // namespace bellows
