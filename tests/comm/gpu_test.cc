#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <thread>
#include <tuple>

#include "bellows/base/device.h"
#include "bellows/base/error.h"
#include "bellows/base/mutex.h"
#include "bellows/comm/communicator.h"
#include "gpu/device_fold.h"
#include "gpu/fold_element.h"
#include "gpu/gpu_communicator.h"
#include "gpu/gpu_plans.h"
#include "lane_data.h"
#include "routed/plans.h"

// What can be tested of the GPU transports without a GPU: the element code of the kernels, what is sent to whom, and
// the communicators on a device whose memory is the host's, over an NCCL of the test's own.

namespace bellows {
namespace {

// ---- A device that is the host ----

struct HostTables {
  const std::byte* const* sources;
  std::byte* const* results;
  const DeviceFold::Op* ops;
  const DeviceFold::Copy* copies;
  int op_count, copy_count;
};

template <class T>
void fold_here(const DeviceFold& fold, const std::byte* const* sources, std::byte* const* results, std::size_t count) {
  constexpr int kPack = static_cast<int>(16 / sizeof(T));
  const FoldCut cut = cut_fold(sizeof(T), sources, fold.sources, results, fold.results, count);
  const HostTables tables{sources,
                          results,
                          fold.ops.data(),
                          fold.copies.data(),
                          static_cast<int>(fold.ops.size()),
                          static_cast<int>(fold.copies.size())};
  for (std::size_t i = 0; i < cut.parts(); ++i) {
    if (i < cut.packs)
      fold_at<T, kPack, kMaxFoldSlots>(tables, cut.element(i));
    else
      fold_at<T, 1, kMaxFoldSlots>(tables, cut.element(i));
  }
}

void host_fold(Stream&, const DeviceFold& fold, DType dtype, const std::byte* const* sources, std::byte* const* results,
               std::size_t count) {
  if (dtype == DType::kF32) fold_here<float>(fold, sources, results, count);
  if (dtype == DType::kBF16) fold_here<bf16>(fold, sources, results, count);
  if (dtype == DType::kF16) fold_here<f16>(fold, sources, results, count);
}

const GpuCalls& host_calls() {
  static const GpuCalls calls = {
      GpuCalls::kVersion,
      [] { return std::string(); },
      host_fold,
      [](Device&, const std::byte*) { return std::string("handle"); },
      [](Device&, const std::string&) -> std::byte* { throw DeviceError("only threads of one process here"); },
      [](Device&, std::byte*) {},
      [](Device&, int) {},
      [](std::string*) -> const NcclCalls* { return nullptr; }};
  return calls;
}

// ---- An NCCL between threads: messages of a pair meet in order, when both have ended their group ----

class FakeNccl {
 public:
  struct Op {
    void* to = nullptr;
    const void* from = nullptr;
    std::size_t bytes = 0;
  };
  struct Comm {
    std::string id;
    int rank = 0, world_size = 0;
    bool in_group = false;
  };

  std::atomic<int> stuck{0};  ///< then nothing is ever through
  std::atomic<int> aborts{0}, windows{0}, sends{0}, inits{0}, closed{0};

  static FakeNccl& now() {
    static FakeNccl one;
    return one;
  }
  void reset() {
    MutexLock lock(mutex_);
    sends_.clear();
    receives_.clear();
    joined_.clear();
    ids_ = 0;
    stuck = aborts = windows = sends = inits = closed = 0;
  }

  std::string new_id() {
    MutexLock lock(mutex_);
    std::string id(128, '\0');
    for (std::size_t i = 0; i < id.size(); ++i) id[i] = static_cast<char>(i * 7 + 1);  // zeros and line ends among them
    id[0] = static_cast<char>(++ids_);
    return id;
  }
  void join(const Comm& comm) {
    MutexLock lock(mutex_);
    joined_[comm.id].insert(comm.rank);
  }
  void send(const Comm& comm, int peer, const void* from, std::size_t bytes) {
    ++sends;
    MutexLock lock(mutex_);
    sends_[{comm.id, comm.rank, peer}].push_back({nullptr, from, bytes});
    match({comm.id, comm.rank, peer});
  }
  void receive(const Comm& comm, int peer, void* to, std::size_t bytes) {
    MutexLock lock(mutex_);
    receives_[{comm.id, peer, comm.rank}].push_back({to, nullptr, bytes});
    match({comm.id, peer, comm.rank});
  }
  /// 7 while something of this rank is open.
  int state(const Comm& comm) {
    MutexLock lock(mutex_);
    if (stuck || static_cast<int>(joined_[comm.id].size()) < comm.world_size) return NcclCalls::kInProgress;
    if (wrong_size_) return 5;
    for (const auto* table : {&sends_, &receives_})
      for (const auto& [pair, ops] : *table)
        if (std::get<0>(pair) == comm.id && !ops.empty() &&
            (table == &sends_ ? std::get<1>(pair) : std::get<2>(pair)) == comm.rank)
          return NcclCalls::kInProgress;
    return NcclCalls::kSuccess;
  }

 private:
  using Pair = std::tuple<std::string, int, int>;
  void match(const Pair& pair) BELLOWS_REQUIRES(mutex_) {
    auto &out = sends_[pair], &in = receives_[pair];
    while (!out.empty() && !in.empty()) {
      if (out.front().bytes != in.front().bytes) wrong_size_ = true;
      std::memcpy(in.front().to, out.front().from, std::min(out.front().bytes, in.front().bytes));
      out.erase(out.begin());
      in.erase(in.begin());
    }
  }
  Mutex mutex_;
  std::map<Pair, std::vector<Op>> sends_ BELLOWS_GUARDED_BY(mutex_), receives_ BELLOWS_GUARDED_BY(mutex_);
  std::map<std::string, std::set<int>> joined_ BELLOWS_GUARDED_BY(mutex_);
  bool wrong_size_ BELLOWS_GUARDED_BY(mutex_) = false;
  int ids_ BELLOWS_GUARDED_BY(mutex_) = 0;
};

FakeNccl::Comm& fake(void* comm) { return *static_cast<FakeNccl::Comm*>(comm); }

const NcclCalls& fake_nccl() {
  static const NcclCalls calls = [] {
    NcclCalls c{};
    c.version = 1;
    c.unique_id = [](NcclCalls::UniqueId* id) {
      std::memcpy(id->bytes, FakeNccl::now().new_id().data(), sizeof id->bytes);
      return 0;
    };
    c.init = [](void** comm, int, int world_size, const NcclCalls::UniqueId* id, int rank) {
      auto* made = new FakeNccl::Comm{std::string(id->bytes, sizeof id->bytes), rank, world_size};
      *comm = made;
      ++FakeNccl::now().inits;
      FakeNccl::now().join(*made);
      return NcclCalls::kInProgress;
    };
    c.async_error = [](void* comm, int* state) {
      *state = FakeNccl::now().state(fake(comm));
      return 0;
    };
    c.finalize = [](void*) { return NcclCalls::kInProgress; };
    c.destroy = [](void* comm) {
      ++FakeNccl::now().closed;
      delete &fake(comm);
      return 0;
    };
    c.abort = [](void* comm) {
      ++FakeNccl::now().aborts;
      delete &fake(comm);
      return 0;
    };
    c.group_start = [] { return 0; };
    c.group_end = [] { return NcclCalls::kInProgress; };
    c.send = [](const void* data, std::size_t bytes, int peer, void* comm, void*) {
      FakeNccl::now().send(fake(comm), peer, data, bytes);
      return 0;
    };
    c.receive = [](void* data, std::size_t bytes, int peer, void* comm, void*) {
      FakeNccl::now().receive(fake(comm), peer, data, bytes);
      return 0;
    };
    c.all_gather = [](const void* mine, void* all, std::size_t bytes, void* comm, void*) {
      auto* place = static_cast<std::byte*>(all);
      const FakeNccl::Comm& me = fake(comm);
      std::memmove(place + static_cast<std::size_t>(me.rank) * bytes, mine, bytes);
      for (int r = 0; r < me.world_size; ++r)
        if (r != me.rank) {
          FakeNccl::now().send(me, r, mine, bytes);
          FakeNccl::now().receive(me, r, place + static_cast<std::size_t>(r) * bytes, bytes);
        }
      return NcclCalls::kInProgress;
    };
    c.reduce_scatter = [](const void*, void* mine, std::size_t count, DType, void*, void*) {
      std::fill_n(static_cast<float*>(mine), count, 42.0f);  // a mark: NCCL was asked to add
      return 0;
    };
    c.allocate = [](int, void** memory, std::size_t bytes) {
      *memory = std::calloc(1, bytes);
      return 0;
    };
    c.free = [](void* memory) {
      std::free(memory);
      return 0;
    };
    c.enrol_window = [](void*, void* memory, std::size_t, void** handle) {
      ++FakeNccl::now().windows;
      *handle = memory;
      return 0;
    };
    c.dismiss_window = [](void*, void*) {
      --FakeNccl::now().windows;
      return 0;
    };
    c.message = [](int) { return "told by the test"; };
    return c;
  }();
  return calls;
}

using Body = std::function<void(int rank, Communicator& comm)>;

/// Ranks as threads, all on the processor as their device. Returns what each threw.
std::vector<std::string> run_ranks(const std::string& transport, int world_size, const Body& body,
                                   const CommOptions& options = {}) {
  FakeNccl::now().reset();
  InprocBootstrap bootstrap;
  std::vector<std::string> errors(world_size);
  std::vector<std::thread> threads;
  for (int r = 0; r < world_size; ++r)
    threads.emplace_back([&, r] {
      try {
        const GpuHost host{&host_calls(), transport == "nccl" ? &fake_nccl() : nullptr, {&cpu_device()}};
        auto comm = connect_gpu(World{r, world_size, r, world_size, 3}, bootstrap, options, host, transport.c_str(),
                                Deadline::after(20));
        body(r, *comm);
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
    });
  for (auto& thread : threads) thread.join();
  return errors;
}

template <class T>
std::vector<T> sums_of_lanes(const std::vector<int>& lanes, std::size_t i) {
  TreeSum<T> sum;
  for (const int lane : lanes) sum.push(lane, T(lane_value(lane, i)));
  return sum.values;
}

template <class T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

/// Every rank brings the sums of its lanes, owns an even chunk, and gathers the whole afterwards.
template <class T>
void reduce_and_gather(int rank, Communicator& comm, const LaneAssignment& assignment, std::size_t count) {
  const int n = comm.world().world_size;
  int lanes = 0;
  for (const auto& own : assignment) lanes += static_cast<int>(own.size());
  ReduceScatterArgs args;
  std::vector<std::size_t> pieces(n);
  for (int r = 0; r < n; ++r)
    for (const LaneSpan& span : fold_lanes(assignment[r]))
      args.pieces.push_back({r, span, (pieces[r]++ * count + 3) * sizeof(T)});  // three elements before the first
  Buffer memory = comm.allocate_window(cpu_device(), (pieces[rank] * count + 3) * sizeof(T));
  T* const own = reinterpret_cast<T*>(memory.data()) + 3;
  for (std::size_t i = 0; i < count; ++i) {
    const auto sums = sums_of_lanes<T>(assignment[rank], i);
    for (std::size_t p = 0; p < sums.size(); ++p) own[p * count + i] = sums[p];
  }
  args.window = comm.expose_device(memory, 0, memory.size());
  for (int r = 0; r < n; ++r) args.owned.push_back({r, even_chunk(count, n, r)});
  Buffer sum = cpu_device().allocate(count * sizeof(T));
  args.results.push_back({{0, lanes}, sum.data(), true});
  args.complete = true;
  args.dtype = dtype_of<T>();
  comm.reduce_scatter(args).wait();

  AllGatherArgs gather;
  gather.window = comm.expose_device(sum, 0, sum.size());
  for (const OwnedInterval& owned : args.owned) gather.owned.push_back({owned.rank, owned.interval});
  gather.dtype = args.dtype;
  comm.all_gather(gather).wait();
  const T* const whole = reinterpret_cast<const T*>(sum.data());
  for (std::size_t i = 0; i < count; ++i)
    if (!same_bits(whole[i], whole_sum<T>(lanes, i)))
      throw std::runtime_error("element " + std::to_string(i) + " of " + std::to_string(count));
  comm.barrier();  // the buffers go before the communicator
}

std::vector<std::string> good(int n) { return std::vector<std::string>(n); }

// ---- The kernel's element code ----

template <class T>
void folds_like_the_cpu(const std::vector<LaneSpan>& spans, bool complete, std::size_t count, std::size_t shift) {
  const FoldProgram program = make_fold(spans, complete);
  const DeviceFold fold = for_device(program);
  const std::size_t sources = spans.size(), results = program.results.size(), stride = count + 24;
  std::vector<T> memory(sources * stride + 24), expected(results * stride + 24), got(results * stride + 24);
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to_expected, to_got;
  // Like multiples of 16 bytes, apart from what `shift` does to the odd ones.
  const auto place = [&](std::vector<T>& v, std::size_t i) {
    const std::size_t wide = 16 / sizeof(T);
    return reinterpret_cast<std::byte*>(v.data() + i * (stride / wide * wide) + 3 + (i % 2) * shift);
  };
  for (std::size_t s = 0; s < sources; ++s) {
    from.push_back(place(memory, s));
    for (std::size_t i = 0; i < count; ++i) {
      const T value(lane_value(static_cast<int>(s), i));
      std::memcpy(place(memory, s) + i * sizeof(T), &value, sizeof(T));
    }
  }
  for (std::size_t r = 0; r < results; ++r) {
    to_expected.push_back(place(expected, r));
    to_got.push_back(place(got, r));
  }
  run_fold(program, dtype_of<T>(), from.data(), to_expected.data(), count);
  fold_here<T>(fold, from.data(), to_got.data(), count);
  ASSERT_EQ(std::memcmp(expected.data(), got.data(), got.size() * sizeof(T)), 0)
      << sources << " sources, " << count << " elements, shift " << shift;
}

std::vector<LaneSpan> singles(int count, int first = 0, int step = 1) {
  std::vector<LaneSpan> spans;
  for (int i = 0; i < count; ++i) spans.push_back({first + i * step, 1});
  return spans;
}

TEST(GpuTreeSum, GivesTheBitsOfTheCpuFoldForAnyTree) {
  for (const std::size_t count : {0, 1, 5, 16, 257})
    for (const std::size_t shift : {0, 1})
      for (const auto& spans : {singles(1), singles(2), singles(3), singles(8), singles(13, 3), singles(40),
                                singles(6, 1, 2), std::vector<LaneSpan>{{0, 4}, {4, 2}, {6, 1}, {7, 1}, {8, 8}}})
        for (const bool complete : {false, true}) {
          folds_like_the_cpu<float>(spans, complete, count, shift);
          folds_like_the_cpu<bf16>(spans, complete, count, shift);
          folds_like_the_cpu<f16>(spans, complete, count, shift);
        }
}

TEST(GpuTreeSum, RegistersGiveTheBitsOfTheGeneralProgram) {
  std::vector<std::vector<bf16>> memory;
  std::vector<const std::byte*> sources;
  for (int s = 0; s < 16; ++s) {
    auto& values = memory.emplace_back();
    for (std::size_t i = 0; i < 64; ++i) values.push_back(bf16(lane_value(s, i)));
  }
  for (const auto& values : memory) sources.push_back(reinterpret_cast<const std::byte*>(values.data()));
  std::vector<bf16> expected(64), got(64);
  std::byte* result = reinterpret_cast<std::byte*>(expected.data());
  run_fold(make_fold(singles(16), true), DType::kBF16, sources.data(), &result, 64);
  for (std::size_t i = 0; i < 64; i += 8)
    store_floats<bf16, 8>(got.data(), i, balanced_sum<bf16, 8, 0, 16>(sources, i));
  EXPECT_EQ(std::memcmp(expected.data(), got.data(), 128), 0);
}

TEST(GpuTreeSum, ExtremesStayWhatTheyAre) {
  // Sums beyond the largest half are infinite, subnormal ones keep their bits, and NaN stays NaN.
  const std::vector<std::uint16_t> bits = {0x7bff, 0x0001, 0x03ff, 0x8001, 0xfc00, 0x7e01, 0x8000, 0x7c00};
  const DeviceFold fold = for_device(make_fold(singles(2), true));
  const FoldProgram program = make_fold(singles(2), true);
  for (const std::uint16_t left : bits)
    for (const std::uint16_t right : bits) {
      const std::byte* sources[] = {reinterpret_cast<const std::byte*>(&left),
                                    reinterpret_cast<const std::byte*>(&right)};
      std::uint16_t expected = 0, got = 0;
      std::byte* to_expected = reinterpret_cast<std::byte*>(&expected);
      std::byte* to_got = reinterpret_cast<std::byte*>(&got);
      run_fold(program, DType::kF16, sources, &to_expected, 1);
      fold_here<f16>(fold, sources, &to_got, 1);
      const bool nan = std::isnan(Element<f16>::widen(expected));
      EXPECT_EQ(std::isnan(Element<f16>::widen(got)), nan) << left << " + " << right;
      if (!nan) {
        EXPECT_EQ(got, expected) << left << " + " << right;
      }
    }
}

TEST(GpuTreeSum, KeepsFewSumsWaiting) {
  EXPECT_LE(for_device(make_fold(singles(1024), true)).slots, 10);
  // Each lane apart: nothing waits, all are copied.
  const DeviceFold apart = for_device(make_fold(singles(100, 0, 2), false));
  EXPECT_TRUE(apart.ops.empty());
  EXPECT_EQ(apart.copies.size(), 100u);
}

// ---- What is sent to whom ----

TEST(GpuPlans, SendWhatTheDirectRouteSends) {
  const std::size_t count = 1003;
  for (const int n : {1, 2, 3, 4, 7})
    for (const LaneAssignment& assignment : {contiguous_lanes(8, n), strided_lanes(8, n), contiguous_lanes(n, n)}) {
      ReduceScatterArgs args;
      std::vector<std::size_t> bytes(n);
      for (int r = 0; r < n; ++r)
        for (const int lane : assignment[r]) {  // one piece for each lane: ranks may add before they send
          args.pieces.push_back({r, {lane, 1}, bytes[r]});
          bytes[r] += count * sizeof(float);
        }
      for (int r = 0; r < n; ++r) args.owned.push_back({r, even_chunk(count, n, r)});
      float result = 0;
      args.results = {{{0, static_cast<int>(args.pieces.size())}, &result, false}};
      args.complete = true;
      const Routes routes(Algorithm::kDirect, Places::one_host(n));
      std::map<std::pair<int, int>, std::size_t> sent, received;
      for (int r = 0; r < n; ++r) {
        GpuReduceScatter plan;
        plan_gpu_reduce_scatter({r, bytes}, args, GpuAccess::kMessages, 1 << 12, &plan);
        std::map<int, std::size_t> ours, theirs;
        for (const auto& wave : plan.waves) {
          for (const auto& message : wave.sends) ours[message.peer] += message.bytes;
          for (const auto& message : wave.sends) sent[{r, message.peer}] += message.bytes;
          for (const auto& message : wave.receives) received[{message.peer, r}] += message.bytes;
        }
        std::vector<std::byte> window(bytes[r]);
        const auto exchange = plan_reduce_scatter(routes, r, {window.data(), bytes}, args);
        for (const auto& send : exchange->sends) theirs[send.peer] += send.bytes;
        EXPECT_EQ(ours, theirs) << "rank " << r << " of " << n;
        EXPECT_LE(plan.scratch_bytes, std::size_t{1} << 20);
      }
      EXPECT_EQ(sent, received);
    }
}

TEST(GpuPlans, OwnersOfMappedWindowsReadEveryPieceOnce) {
  ReduceScatterArgs args;
  for (int r = 0; r < 4; ++r) args.pieces.push_back({r, {r, 1}, 64});
  for (int r = 0; r < 4; ++r) args.owned.push_back({r, even_chunk(400, 4, r)});
  float result = 0;
  args.results = {{{0, 4}, &result, false}};
  GpuReduceScatter plan;
  plan_gpu_reduce_scatter({1, {2000, 2000, 2000, 2000}}, args, GpuAccess::kMapped, 1 << 20, &plan);
  ASSERT_EQ(plan.waves.size(), 1u);
  ASSERT_EQ(plan.waves[0].after.size(), 1u);
  EXPECT_EQ(plan.scratch_bytes, 0u);
  EXPECT_TRUE(plan.waves[0].sends.empty() && plan.waves[0].receives.empty());
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(plan.waves[0].after[0].sources[r].rank, r);
    EXPECT_EQ(plan.waves[0].after[0].sources[r].offset, 64 + 100 * sizeof(float));
  }
}

TEST(GpuPlans, RefuseWhatDoesNotFit) {
  ReduceScatterArgs args;
  args.pieces = {{0, {0, 1}, 0}, {1, {1, 1}, 0}};
  args.owned = {{0, {0, 10}}, {1, {10, 20}}};
  float result = 0;
  args.results = {{{0, 2}, &result, false}};
  GpuReduceScatter plan;
  EXPECT_THROW(plan_gpu_reduce_scatter({0, {80, 79}}, args, GpuAccess::kMessages, 1 << 20, &plan),
               std::invalid_argument);
  args.results.clear();
  EXPECT_THROW(plan_gpu_reduce_scatter({0, {80, 80}}, args, GpuAccess::kMessages, 1 << 20, &plan),
               std::invalid_argument);
  AllGatherArgs gather;
  gather.owned = {{0, {0, 10}}, {1, {10, 20}}};
  EXPECT_THROW(plan_gpu_all_gather({0, {80, 79}}, nullptr, gather), std::invalid_argument);
}

// ---- The communicators ----

class GpuCommunicators : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(OnAHost, GpuCommunicators, testing::Values("nccl", "cuda-ipc"),
                         [](const auto& test) { return test.param == "nccl" ? "Nccl" : "CudaIpc"; });

TEST_P(GpuCommunicators, GiveTheBitsOfAPlainLoop) {
  for (const int n : {1, 2, 3, 5})
    EXPECT_EQ(run_ranks(GetParam(), n,
                        [&](int rank, Communicator& comm) {
                          for (const std::size_t count : {1, 7, 1000, 4096})
                            for (const LaneAssignment& assignment : {contiguous_lanes(8, n), strided_lanes(7, n)}) {
                              reduce_and_gather<float>(rank, comm, assignment, count);
                              reduce_and_gather<bf16>(rank, comm, assignment, count);
                              reduce_and_gather<f16>(rank, comm, assignment, count);
                            }
                        }),
              good(n));
}

TEST_P(GpuCommunicators, CarryWhatIsNotOfADeviceBesides) {
  EXPECT_EQ(run_ranks(GetParam(), 3,
                      [](int rank, Communicator& comm) {
                        std::vector<float> data = {1.0f + static_cast<float>(rank)};
                        all_reduce(comm, std::span<float>(data));
                        if (data[0] != 6) throw std::runtime_error("sum of host memory");
                        const auto blobs = comm.all_gather_blobs(std::to_string(rank));
                        if (blobs != std::vector<std::string>{"0", "1", "2"}) throw std::runtime_error("blobs");
                      }),
            good(3));
}

TEST_P(GpuCommunicators, TellWhenRanksAskForDifferentThings) {
  const auto errors = run_ranks(GetParam(), 2, [](int rank, Communicator& comm) {
    Buffer memory = cpu_device().allocate(80);
    AllGatherArgs args;
    args.window = comm.expose_device(memory, 0, 80);
    args.owned = {{0, {0, 10}}, {1, {10, rank == 0 ? 20u : 19u}}};
    comm.all_gather(args).wait();
  });
  for (const std::string& error : errors) EXPECT_THAT(error, testing::HasSubstr("gives other arguments"));
}

TEST(NcclCommunicator, MeetsUnderTheIdOfRankZero) {
  EXPECT_EQ(run_ranks("nccl", 4, [](int, Communicator& comm) { comm.barrier(); }), good(4));
  EXPECT_EQ(FakeNccl::now().inits, 4);
  EXPECT_EQ(FakeNccl::now().closed, 4);  // all joined one communicator, else none had been through
  EXPECT_EQ(FakeNccl::now().aborts, 0);
}

TEST(NcclCommunicator, RegistersItsOwnMemoryAsAWindow) {
  EXPECT_EQ(run_ranks("nccl", 2,
                      [](int, Communicator& comm) {
                        Buffer own = comm.allocate_window(cpu_device(), 4096);
                        comm.expose_device(own, 0, 4096);
                        Buffer other = cpu_device().allocate(4096);  // not of ncclMemAlloc: no window
                        comm.expose_device(other, 0, 4096);
                        comm.barrier();
                        if (FakeNccl::now().windows != 2) throw std::runtime_error("windows");
                        comm.barrier();
                      }),
            good(2));
  EXPECT_EQ(FakeNccl::now().windows, 0);
}

TEST(NcclCommunicator, LeavesTheOrderToNcclIfThatIsAskedFor) {
  CommOptions options;
  options.reduction = Reduction::kFast;
  EXPECT_EQ(run_ranks(
                "nccl", 2,
                [](int rank, Communicator& comm) {
                  Buffer memory = comm.allocate_window(cpu_device(), 80);
                  std::vector<float> sum(10);
                  ReduceScatterArgs args;
                  args.window = comm.expose_device(memory, 0, 80);
                  args.pieces = {{0, {0, 1}, 0}, {1, {1, 1}, 0}};
                  args.owned = {{0, {0, 10}}, {1, {10, 20}}};
                  args.results = {{{0, 2}, sum.data(), false}};
                  args.complete = true;
                  comm.reduce_scatter(args).wait();
                  if (sum != std::vector<float>(10, 42.0f)) throw std::runtime_error("not NCCL's own sum");
                  args.owned = {{0, {0, 9}}, {1, {9, 20}}};  // uneven: the tree sum, of zeros
                  sum.resize(11);
                  args.results[0].data = sum.data();
                  comm.reduce_scatter(args).wait();
                  const std::size_t owned = rank == 0 ? 9 : 11;
                  for (std::size_t i = 0; i < owned; ++i)
                    if (sum[i] != 0) throw std::runtime_error("not the tree sum");
                },
                options),
            good(2));
}

TEST(NcclCommunicator, IsAbortedFromAnotherThreadWhileNcclWaits) {
  const auto errors = run_ranks("nccl", 2, [](int rank, Communicator& comm) {
    Buffer memory = comm.allocate_window(cpu_device(), 80);
    AllGatherArgs args;
    args.window = comm.expose_device(memory, 0, 80);
    args.owned = {{0, {0, 10}}, {1, {10, 20}}};
    comm.barrier();
    FakeNccl::now().stuck = 1;
    comm.barrier();
    const Work work = comm.all_gather(args);
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (rank == 0) comm.abort("the test wants it so");
    });
    try {
      work.wait();
    } catch (...) {
      other.join();
      throw;
    }
    other.join();
  });
  for (const std::string& error : errors) EXPECT_THAT(error, testing::HasSubstr("the test wants it so"));
  EXPECT_EQ(FakeNccl::now().aborts, 2);
  EXPECT_EQ(FakeNccl::now().closed, 0);
}

TEST(NcclCommunicator, HoldsTheTimeLimitWhileNcclWaits) {
  CommOptions options;
  options.timeout_s = 0.3;
  const auto errors = run_ranks(
      "nccl", 2,
      [](int, Communicator& comm) {
        Buffer memory = comm.allocate_window(cpu_device(), 80);
        AllGatherArgs args;
        args.window = comm.expose_device(memory, 0, 80);
        args.owned = {{0, {0, 10}}, {1, {10, 20}}};
        comm.barrier();
        FakeNccl::now().stuck = 1;
        comm.barrier();
        comm.all_gather(args).wait();
      },
      options);
  for (const std::string& error : errors) EXPECT_THAT(error, testing::HasSubstr("not through in time"));
}

// ---- Without a GPU ----

TEST(GpuTransports, SayInOneLineWhatIsMissing) {
  if (cuda_devices()) GTEST_SKIP() << "this host has a GPU";
  for (const std::string name : {"nccl", "cuda-ipc"}) {
    std::string note;
    for (const TransportInfo& info : transports())
      if (info.name == name) {
        EXPECT_FALSE(info.usable);
        note = info.note;
      }
    ASSERT_FALSE(note.empty());
    EXPECT_EQ(note.find('\n'), std::string::npos);
    SoloBootstrap bootstrap;
    CommOptions options;
    options.transport = name;
    try {
      connect(World{0, 1, 0, 1, 1}, bootstrap, options);
      FAIL() << "connected";
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(note));
    }
  }
}

TEST(GpuTransports, AreNeverTakenUnasked) {
  SoloBootstrap bootstrap;
  auto comm = connect(World{0, 1, 0, 1, 1}, bootstrap);
  EXPECT_STREQ(comm->transport(), "inproc");
  Introduction rank = introduce_this_process();
  rank.wanted = "auto auto";
  EXPECT_FALSE(nccl_unfit({rank}).empty());
  EXPECT_FALSE(cuda_ipc_unfit({rank}).empty());
}

TEST(GpuTransports, HostTransportsRefuseWindowsOnDevices) {
  SoloBootstrap bootstrap;
  auto comm = connect(World{0, 1, 0, 1, 1}, bootstrap);
  Buffer memory = cpu_device().allocate(64);
  EXPECT_THROW(comm->expose_device(memory, 0, 64), UserError);
}

TEST(GpuTransports, OnlyNcclOffersSumsInAnyOrder) {
  SoloBootstrap bootstrap;
  CommOptions options;
  options.reduction = Reduction::kFast;
  EXPECT_THROW(connect(World{0, 1, 0, 1, 1}, bootstrap, options), UserError);
}

}  // namespace
}  // namespace bellows
