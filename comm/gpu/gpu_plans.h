#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bellows/comm/communicator.h"
#include "gpu/device_fold.h"

namespace bellows {

/// What the plans of one rank depend on besides the arguments.
struct GpuPlace {
  int rank = 0;
  std::vector<std::size_t> window_bytes;  ///< by rank
  int world_size() const { return static_cast<int>(window_bytes.size()); }
};

/// Memory that a plan speaks of.
struct GpuMemory {
  enum Kind { kWindow, kScratch, kAddress } kind = kAddress;
  int rank = 0;                  ///< kWindow: whose
  std::size_t offset = 0;        ///< kWindow, kScratch: in bytes
  std::byte* address = nullptr;  ///< kAddress: of this rank
};

/// Carried out in this order, one wave after the other: folds of what leaves, messages, folds of what came.
struct GpuReduceScatter {
  struct Fold {
    const DeviceFold* program = nullptr;
    std::vector<GpuMemory> sources, results;
    std::size_t count = 0;
  };
  struct Message {
    int peer = 0;
    GpuMemory memory;
    std::size_t bytes = 0;
  };
  struct Wave {
    std::vector<Fold> before;
    std::vector<Message> sends, receives;  ///< the n-th to a peer is the n-th that it expects
    std::vector<Fold> after;
  };
  std::vector<Wave> waves;
  std::size_t scratch_bytes = 0;  ///< used anew by every wave
  DType dtype = DType::kF32;
  std::uint64_t signature = 0;  ///< of what all ranks must agree about
  DeviceFold outgoing, incoming;
  /// The order of additions may be left to NCCL: every rank brings one piece, and rank r owns the r-th of equal chunks.
  bool even = false;
  std::size_t even_offset = 0;  ///< of the first chunk in this rank's piece
  std::size_t even_count = 0;   ///< elements of a chunk
  std::byte* even_result = nullptr;

  GpuReduceScatter() = default;
  GpuReduceScatter(const GpuReduceScatter&) = delete;  // folds point at its programs
  GpuReduceScatter& operator=(const GpuReduceScatter&) = delete;
};

/// How a rank gets at what its peers bring.
enum class GpuAccess {
  kMessages,  ///< every rank folds its own pieces as far as they go and sends the rest to the owner in one hop, in
              ///< waves whose scratch has a bound (Algorithm::kDirect)
  kMapped,    ///< owners read their peers' windows: one wave, no message, no scratch
};

/// Fills `plan`; arguments are checked (std::invalid_argument). `wave_bytes`: of scratch, at most about so many.
void plan_gpu_reduce_scatter(const GpuPlace& place, const ReduceScatterArgs& args, GpuAccess access,
                             std::size_t wave_bytes, GpuReduceScatter* plan);

struct GpuAllGather {
  struct Part {
    int rank = 0;            ///< who has it
    std::size_t source = 0;  ///< where, in that rank's window
    std::byte* destination = nullptr;
    std::size_t bytes = 0;
  };
  std::vector<Part> parts;  ///< in the order of the arguments, the same on every rank; empty ones left out
  std::uint64_t signature = 0;
  /// Rank r owns the r-th of equal chunks that stand one behind the other, here and in the destination.
  bool even = false;
};
GpuAllGather plan_gpu_all_gather(const GpuPlace& place, std::byte* own_window, const AllGatherArgs& args);

}  // namespace bellows
