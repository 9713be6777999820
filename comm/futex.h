#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "bellows/base/clock.h"

namespace bellows {

/// Sleeps while `word` holds `expected`, at most `limit`; wakes early at any time. Works between processes.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, Nanos limit);
/// Wakes everyone who sleeps on `word`.
void futex_wake(const std::atomic<std::uint32_t>& word);
/// A breath inside a spinning loop.
void cpu_relax();
/// Processors that this thread may use, one hex digit for four, the lowest first.
std::string allowed_cores();
/// How many processors stand in at least one of such sets.
int count_cores(const std::vector<std::string>& sets);

}  // namespace bellows
