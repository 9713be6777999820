#include "futex.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <climits>
#include <ctime>

namespace bellows {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, Nanos limit) {
  if (limit <= 0) return;
  const timespec timeout{static_cast<time_t>(limit / 1'000'000'000), static_cast<long>(limit % 1'000'000'000)};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void futex_wake(const std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

std::string allowed_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return "1";
  std::string digits;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu += 4) {
    int digit = 0;
    for (int bit = 0; bit < 4; ++bit) digit |= CPU_ISSET(cpu + bit, &set) ? 1 << bit : 0;
    digits += "0123456789abcdef"[digit];
  }
  return digits.substr(0, digits.find_last_not_of('0') + 1);
}

int count_cores(const std::vector<std::string>& sets) {
  std::vector<int> all;
  for (const std::string& set : sets) {
    if (all.size() < set.size()) all.resize(set.size(), 0);
    for (std::size_t i = 0; i < set.size(); ++i) all[i] |= set[i] <= '9' ? set[i] - '0' : set[i] - 'a' + 10;
  }
  int count = 0;
  for (const int digit : all) count += std::popcount(static_cast<unsigned>(digit));
  return count;
}

}  // namespace bellows
