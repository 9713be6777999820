// gpu_collectives: checks and measures collectives on windows of GPUs, with processes of its own as ranks. Prints one
// row for each transport, call and size; without a GPU says so and exits 0. Exits 1 if a sum has wrong bits.
//   gpu_collectives [RANKS]     for cuda-ipc, where ranks may share a GPU; nccl takes one rank for each GPU
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bellows/base/device.h"
#include "comm/lane_data.h"
#include "comm/ranks.h"
#include "gpu/gpu_communicator.h"

namespace bellows {
namespace {

/// In a process of its own: CUDA does not outlive a fork, so this one must not have touched it.
int count_gpus() {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const std::string why = cuda_ipc_obstacle();
    if (!why.empty()) std::printf("not covered: %s\n", why.c_str());
    std::fflush(stdout);
    _exit(why.empty() && cuda_devices() ? static_cast<int>(std::min<std::size_t>(cuda_devices().value().size(), 64))
                                        : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

/// One rank: brings lane `rank` of `count` elements, owns an even chunk.
template <class T>
class Measured {
 public:
  Measured(int rank, Communicator& comm, std::size_t count)
      : rank_(rank),
        n_(comm.world().world_size),
        comm_(comm),
        count_(count),
        device_(*cuda_devices().value()[static_cast<std::size_t>(rank) % cuda_devices().value().size()]),
        stream_(device_.make_stream()),
        memory_(comm.allocate_window(device_, count * sizeof(T))),
        sum_(comm.allocate_window(device_, count * sizeof(T))) {
    std::vector<T> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = T(lane_value(rank, i));
    stream_->copy(memory_.as<std::byte>(), std::as_bytes(std::span(values)));
    stream_->synchronize();
    reduce_.window = comm.expose_device(memory_, 0, memory_.size());
    gather_.window = comm.expose_device(sum_, 0, sum_.size());
    for (int r = 0; r < n_; ++r) {
      reduce_.pieces.push_back({r, {r, 1}, 0});
      reduce_.owned.push_back({r, even_chunk(count, n_, r)});
      gather_.owned.push_back({r, even_chunk(count, n_, r)});
    }
    reduce_.results = {{{0, n_}, sum_.data(), true}};
    reduce_.complete = true;
    reduce_.dtype = gather_.dtype = dtype_of<T>();
  }

  std::size_t wrong() {
    comm_.reduce_scatter(reduce_).wait();
    comm_.all_gather(gather_).wait();
    std::vector<T> got(count_);
    stream_->copy(std::as_writable_bytes(std::span(got)), sum_.as<std::byte>());
    stream_->synchronize();
    std::size_t wrong = 0;
    const std::size_t step = count_ < 100'000 ? 1 : 97;  // the plain loop is slow
    for (std::size_t i = 0; i < count_; i += step) {
      const T expected = whole_sum<T>(n_, i);
      wrong += std::memcmp(&got[i], &expected, sizeof(T)) != 0;
    }
    return wrong;
  }

  std::string row(const char* transport) {
    const std::size_t bad = wrong();
    std::string text;
    for (const bool reduce : {true, false}) {
      std::vector<double> times;
      for (int turn = 0; turn < 12; ++turn) {
        comm_.barrier();
        const Nanos began = now_ns();
        (reduce ? comm_.reduce_scatter(reduce_) : comm_.all_gather(gather_)).wait();
        if (turn >= 2) times.push_back(seconds(now_ns() - began));
      }
      std::sort(times.begin(), times.end());
      const double median = times[times.size() / 2];
      const double bus = static_cast<double>(count_ * sizeof(T)) * (n_ - 1) / n_ / median * 1e-9;
      char line[200];
      std::snprintf(line, sizeof line, "%-9s %-15s %-5s %2d ranks %11zu B %10.1f us %8.2f GB/s bus %s\n", transport,
                    reduce ? "reduce_scatter" : "all_gather", std::string(name_of(dtype_of<T>())).c_str(), n_,
                    count_ * sizeof(T), median * 1e6, bus, bad ? "WRONG" : "same bits");
      text += line;
    }
    comm_.barrier();
    return text;
  }

 private:
  const int rank_, n_;
  Communicator& comm_;
  const std::size_t count_;
  Device& device_;
  const std::unique_ptr<Stream> stream_;
  Buffer memory_, sum_;
  ReduceScatterArgs reduce_;
  AllGatherArgs gather_;
};

bool measure(const char* transport, int ranks, std::size_t bytes) {
  const auto outcomes = run_on(transport, ranks, [&](int rank, Communicator& comm) {
    return Measured<float>(rank, comm, bytes / sizeof(float) + 1).row(transport) +
           Measured<bf16>(rank, comm, bytes / sizeof(bf16)).row(transport) +
           Measured<f16>(rank, comm, bytes / sizeof(f16)).row(transport);
  });
  std::fputs(outcomes[0].text.c_str(), stdout);
  bool good = true;
  for (const Outcome& outcome : outcomes)
    if (outcome.text.find("same bits") == std::string::npos || outcome.text.find("WRONG") != std::string::npos) {
      good = false;
      std::printf("%s: %s\n", transport, outcome.text.c_str());
    }
  return good;
}

}  // namespace
}  // namespace bellows

int main(int argc, char** argv) {
  using namespace bellows;
  const int asked = argc > 1 ? std::atoi(argv[1]) : 2;
  if (argc > 2 || asked < 1 || asked > 16) {
    std::fprintf(stderr, "usage: gpu_collectives [RANKS, 1 to 16]\n");
    return 2;
  }
  const int gpus = count_gpus();
  if (gpus == 0) return 0;
  bool good = true;
  for (const std::size_t bytes :
       {std::size_t{1} << 16, std::size_t{1} << 20, std::size_t{1} << 24, std::size_t{1} << 26}) {
    good = measure("cuda-ipc", asked, bytes) && good;
    good = measure("nccl", std::min(gpus, 8), bytes) && good;
  }
  return good ? 0 : 1;
}
