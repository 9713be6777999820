#include "nccl_library.h"

#if defined(BELLOWS_HAVE_NCCL)
#include <dlfcn.h>
#include <nccl.h>

#include <cstring>

#include "bellows/base/mutex.h"
#include "check.h"

namespace bellows {
namespace {

/// The library's functions, of the types in its header. Those without `required` may be missing.
struct Library {
#define BELLOWS_NCCL(name) decltype(&nccl##name) name = nullptr
  BELLOWS_NCCL(GetVersion);
  BELLOWS_NCCL(GetUniqueId);
  BELLOWS_NCCL(CommInitRankConfig);
  BELLOWS_NCCL(CommGetAsyncError);
  BELLOWS_NCCL(CommFinalize);
  BELLOWS_NCCL(CommDestroy);
  BELLOWS_NCCL(CommAbort);
  BELLOWS_NCCL(GroupStart);
  BELLOWS_NCCL(GroupEnd);
  BELLOWS_NCCL(Send);
  BELLOWS_NCCL(Recv);
  BELLOWS_NCCL(AllGather);
  BELLOWS_NCCL(ReduceScatter);
  BELLOWS_NCCL(MemAlloc);
  BELLOWS_NCCL(MemFree);
  BELLOWS_NCCL(GetErrorString);
  BELLOWS_NCCL(CommRegister);
  BELLOWS_NCCL(CommDeregister);
#if NCCL_VERSION_CODE >= 22700
  BELLOWS_NCCL(CommWindowRegister);
  BELLOWS_NCCL(CommWindowDeregister);
#endif
#undef BELLOWS_NCCL

  /// Empty if all that is needed is there.
  std::string open() {
    void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) return std::string("NCCL is not installed here (") + dlerror() + ")";
    std::string missing;
#define BELLOWS_NCCL(name, required)                                     \
  name = reinterpret_cast<decltype(name)>(dlsym(library, "nccl" #name)); \
  if (required && !name) missing = "nccl" #name
    BELLOWS_NCCL(GetVersion, true);
    BELLOWS_NCCL(GetUniqueId, true);
    BELLOWS_NCCL(CommInitRankConfig, true);
    BELLOWS_NCCL(CommGetAsyncError, true);
    BELLOWS_NCCL(CommFinalize, true);
    BELLOWS_NCCL(CommDestroy, true);
    BELLOWS_NCCL(CommAbort, true);
    BELLOWS_NCCL(GroupStart, true);
    BELLOWS_NCCL(GroupEnd, true);
    BELLOWS_NCCL(Send, true);
    BELLOWS_NCCL(Recv, true);
    BELLOWS_NCCL(AllGather, true);
    BELLOWS_NCCL(ReduceScatter, true);
    BELLOWS_NCCL(MemAlloc, true);
    BELLOWS_NCCL(MemFree, true);
    BELLOWS_NCCL(GetErrorString, true);
    BELLOWS_NCCL(CommRegister, false);
    BELLOWS_NCCL(CommDeregister, false);
#if NCCL_VERSION_CODE >= 22700
    BELLOWS_NCCL(CommWindowRegister, false);
    BELLOWS_NCCL(CommWindowDeregister, false);
#endif
#undef BELLOWS_NCCL
    if (!missing.empty()) return "the NCCL that is installed here is too old: it lacks " + missing;
    return {};
  }
};

Library nccl;

static_assert(sizeof(NcclCalls::UniqueId) == sizeof(ncclUniqueId));
static_assert(NcclCalls::kSuccess == ncclSuccess && NcclCalls::kInProgress == ncclInProgress);

ncclComm_t comm_of(void* comm) { return static_cast<ncclComm_t>(comm); }
cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

int unique_id(NcclCalls::UniqueId* id) {
  ncclUniqueId own;
  const ncclResult_t code = nccl.GetUniqueId(&own);
  std::memcpy(id->bytes, own.internal, sizeof id->bytes);
  return code;
}

int init(void** comm, int device, int world_size, const NcclCalls::UniqueId* id, int rank) {
  cuda_check(cudaSetDevice(device), "cudaSetDevice");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclUniqueId own;
  std::memcpy(own.internal, id->bytes, sizeof own.internal);
  // Written by a thread of NCCL's, perhaps after the return: to the place that the caller keeps.
  return nccl.CommInitRankConfig(reinterpret_cast<ncclComm_t*>(comm), world_size, own, rank, &config);
}

int async_error(void* comm, int* state) {
  ncclResult_t own = ncclSuccess;
  const ncclResult_t code = nccl.CommGetAsyncError(comm_of(comm), &own);
  *state = own;
  return code;
}

int reduce_scatter(const void* all, void* mine, std::size_t count, DType dtype, void* comm, void* stream) {
  const ncclDataType_t type = dtype == DType::kF32 ? ncclFloat32 : dtype == DType::kBF16 ? ncclBfloat16 : ncclFloat16;
  return nccl.ReduceScatter(all, mine, count, type, ncclSum, comm_of(comm), stream_of(stream));
}

int allocate(int device, void** memory, std::size_t bytes) {
  cuda_check(cudaSetDevice(device), "cudaSetDevice");
  const ncclResult_t code = nccl.MemAlloc(memory, bytes);
  if (code != ncclSuccess) return code;
  cuda_check(cudaMemset(*memory, 0, bytes), "cudaMemset");
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // other streams do not wait for the default one
  return code;
}

NcclCalls table() {
  NcclCalls calls{};
  nccl.GetVersion(&calls.version);
  calls.unique_id = unique_id;
  calls.init = init;
  calls.async_error = async_error;
  calls.finalize = [](void* comm) -> int { return nccl.CommFinalize(comm_of(comm)); };
  calls.destroy = [](void* comm) -> int { return nccl.CommDestroy(comm_of(comm)); };
  calls.abort = [](void* comm) -> int { return nccl.CommAbort(comm_of(comm)); };
  calls.group_start = []() -> int { return nccl.GroupStart(); };
  calls.group_end = []() -> int { return nccl.GroupEnd(); };
  calls.send = [](const void* data, std::size_t bytes, int peer, void* comm, void* stream) -> int {
    return nccl.Send(data, bytes, ncclUint8, peer, comm_of(comm), stream_of(stream));
  };
  calls.receive = [](void* data, std::size_t bytes, int peer, void* comm, void* stream) -> int {
    return nccl.Recv(data, bytes, ncclUint8, peer, comm_of(comm), stream_of(stream));
  };
  calls.all_gather = [](const void* mine, void* all, std::size_t bytes, void* comm, void* stream) -> int {
    return nccl.AllGather(mine, all, bytes, ncclUint8, comm_of(comm), stream_of(stream));
  };
  calls.reduce_scatter = reduce_scatter;
  calls.allocate = allocate;
  calls.free = [](void* memory) -> int { return nccl.MemFree(memory); };
  calls.message = [](int code) -> const char* { return nccl.GetErrorString(static_cast<ncclResult_t>(code)); };
  if (nccl.CommRegister && nccl.CommDeregister) {
    calls.enrol = [](void* comm, void* memory, std::size_t bytes, void** handle) -> int {
      return nccl.CommRegister(comm_of(comm), memory, bytes, handle);
    };
    calls.dismiss = [](void* comm, void* handle) -> int { return nccl.CommDeregister(comm_of(comm), handle); };
  }
#if NCCL_VERSION_CODE >= 22700
  if (nccl.CommWindowRegister && nccl.CommWindowDeregister) {
    calls.enrol_window = [](void* comm, void* memory, std::size_t bytes, void** handle) -> int {
      return nccl.CommWindowRegister(comm_of(comm), memory, bytes, reinterpret_cast<ncclWindow_t*>(handle),
                                     NCCL_WIN_COLL_SYMMETRIC);
    };
    calls.dismiss_window = [](void* comm, void* handle) -> int {
      return nccl.CommWindowDeregister(comm_of(comm), static_cast<ncclWindow_t>(handle));
    };
  }
#endif
  return calls;
}

}  // namespace

const NcclCalls* open_nccl(std::string* why) {
  struct Opened {
    std::string obstacle = nccl.open();
    NcclCalls calls = obstacle.empty() ? table() : NcclCalls{};
  };
  static const Opened opened;
  *why = opened.obstacle;
  return opened.obstacle.empty() ? &opened.calls : nullptr;
}

}  // namespace bellows

#else

namespace bellows {

const NcclCalls* open_nccl(std::string* why) {
  *why = "this build has no NCCL (nccl.h was not found)";
  return nullptr;
}

}  // namespace bellows
#endif
