#include "hardware/per_core.h"

#include <pthread.h>
#include <sched.h>

#include <barrier>
#include <thread>

namespace bellows {
namespace {

// Failing to pin is no error: the kernel then places the thread.
void pin_this_thread(int core) {
  cpu_set_t* set = CPU_ALLOC(core + 1);
  const std::size_t bytes = CPU_ALLOC_SIZE(core + 1);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(core, bytes, set);
  pthread_setaffinity_np(pthread_self(), bytes, set);
  CPU_FREE(set);
}

}  // namespace

void run_on_cores(const std::vector<int>& cores, const std::function<void(std::size_t)>& work) {
  std::barrier start(static_cast<std::ptrdiff_t>(cores.size()));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < cores.size(); ++i) {
    threads.emplace_back([&, i] {
      pin_this_thread(cores[i]);
      start.arrive_and_wait();
      work(i);
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace bellows
