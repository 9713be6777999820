#pragma once
#include <cstddef>
#include <string>

#include "bellows/base/device.h"
#include "bellows/base/dtype.h"
#include "gpu/device_fold.h"

// Between this room and what it keeps in libbellows_cuda.so: tables of functions, which tests fill with others.

namespace bellows {

/// What Bellows uses of NCCL. Everything is non-blocking: a call that returns kInProgress is over when `async_error`
/// says something else. Results are NCCL's own codes. Streams are native ones (Stream::native()).
struct NcclCalls {
  static constexpr int kSuccess = 0, kInProgress = 7;
  struct UniqueId {
    char bytes[128];
  };
  int version;  ///< 22809 for 2.28.9
  int (*unique_id)(UniqueId* id);
  int (*init)(void** comm, int device, int world_size, const UniqueId* id, int rank);
  int (*async_error)(void* comm, int* state);
  int (*finalize)(void* comm);
  int (*destroy)(void* comm);
  int (*abort)(void* comm);  ///< from any thread
  int (*group_start)();
  int (*group_end)();
  int (*send)(const void* data, std::size_t bytes, int peer, void* comm, void* stream);
  int (*receive)(void* data, std::size_t bytes, int peer, void* comm, void* stream);
  int (*all_gather)(const void* mine, void* all, std::size_t bytes, void* comm, void* stream);
  int (*reduce_scatter)(const void* all, void* mine, std::size_t count, DType dtype, void* comm, void* stream);
  int (*allocate)(int device, void** memory, std::size_t bytes);  ///< zeroed
  int (*free)(void* memory);
  /// A hint, by one rank alone.
  int (*enrol)(void* comm, void* memory, std::size_t bytes, void** handle);
  int (*dismiss)(void* comm, void* handle);
  /// Collective, for memory of `allocate` of one size on all ranks; null where the library has no windows.
  int (*enrol_window)(void* comm, void* memory, std::size_t bytes, void** handle);
  int (*dismiss_window)(void* comm, void* handle);
  const char* (*message)(int code);
};

struct GpuCalls {
  static constexpr int kVersion = 1;
  int version;
  /// Why this host has no GPU to use, in one line; empty if it has one.
  std::string (*obstacle)();
  /// As run_fold, in the order of `stream`; all memory is of the stream's device or mapped there.
  void (*fold)(Stream& stream, const DeviceFold& fold, DType dtype, const std::byte* const* sources,
               std::byte* const* results, std::size_t count);
  /// A name under which other processes of this host can `open` the allocation that starts at `memory`.
  std::string (*share)(Device& device, const std::byte* memory);
  std::byte* (*open)(Device& reader, const std::string& name);
  void (*close)(Device& reader, std::byte* memory);
  /// Lets `reader` read the memory of another device of this process.
  void (*reach)(Device& reader, int other);
  /// NCCL, opened at the first call; null, and the reason in `why`, where it cannot be had.
  const NcclCalls* (*nccl)(std::string* why);
};

/// The one symbol of this room in the plugin.
using GpuCallsEntry = const GpuCalls* (*)();
inline constexpr const char* kGpuCallsSymbol = "bellows_cuda_comm";

/// The table of the CUDA plugin; null, and the reason in `why`, where this build or host has none.
const GpuCalls* gpu_calls(std::string* why);

}  // namespace bellows
