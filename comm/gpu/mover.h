#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/base/device.h"
#include "gpu/gpu_calls.h"
#include "gpu/gpu_plans.h"

namespace bellows {

/// A window on a device as one rank sees it.
struct GpuWindow {
  std::byte* own = nullptr;
  std::vector<std::size_t> bytes;             ///< by rank
  std::vector<const std::byte*> mapped;       ///< by rank, where this device reads it; empty if movers send messages
  std::vector<std::function<void()>> on_end;  ///< undo what exposing did
};

/// How device memory gets from rank to rank: what `nccl` and `cuda-ipc` differ in. Calls come from one thread at a time
/// except `abort`. All calls enqueue on the stream given at construction; they may wait, and look at `check` meanwhile.
class GpuMover {
 public:
  /// Throws if the generation has failed or the time limit has passed.
  using Check = std::function<void()>;
  virtual ~GpuMover() = default;
  virtual GpuAccess access() const = 0;
  /// What peers are told of a window; any bytes.
  virtual std::string describe(const Buffer& memory, std::size_t offset, std::size_t bytes) = 0;
  /// Collective. `told[r]` is what rank r described.
  virtual void expose(const Buffer& memory, const std::vector<std::string>& told, GpuWindow& window,
                      const Check& check) = 0;
  virtual Buffer allocate(std::size_t bytes) = 0;
  /// `scratch` has plan.scratch_bytes.
  virtual void reduce_scatter(const GpuReduceScatter& plan, const GpuWindow& window, std::byte* scratch,
                              const Check& check) = 0;
  virtual void all_gather(const GpuAllGather& plan, const GpuWindow& window, const Check& check) = 0;
  /// True if this rank must not reuse its windows before peers say that they have read them.
  virtual bool peers_read_windows() const = 0;
  /// Throws DeviceError if what carries the data has met a failure.
  virtual void look() {}
  /// From any thread: whatever the device waits for in vain ends soon.
  virtual void abort() noexcept = 0;
  /// Leaves in good order; collective.
  virtual void close(const Check& check) = 0;
};

/// Enqueues one fold of a plan.
void enqueue_fold(const GpuCalls& calls, Stream& stream, const GpuReduceScatter::Fold& fold, DType dtype,
                  const GpuWindow& window, int rank, std::byte* scratch);

/// Between ranks with a GPU each, on any hosts. `reproducible`: NCCL moves, the tree-sum kernel adds; else NCCL adds
/// too where chunks are even. `id` is the same on all ranks.
std::unique_ptr<GpuMover> make_nccl_mover(const GpuCalls& calls, const NcclCalls& nccl, Device& device, Stream& stream,
                                          int rank, int world_size, const NcclCalls::UniqueId& id, bool reproducible,
                                          const GpuMover::Check& check);
/// Between ranks of one host, several of which may share a GPU.
std::unique_ptr<GpuMover> make_ipc_mover(const GpuCalls& calls, Device& device, Stream& stream, int rank);

}  // namespace bellows
