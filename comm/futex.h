#pragma once
#include <atomic>
#include <cstdint>

#include "bellows/base/clock.h"

namespace bellows {

/// Sleeps while `word` holds `expected`, at most `limit`; wakes early at any time. Works between processes.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, Nanos limit);
/// Wakes everyone who sleeps on `word`.
void futex_wake(const std::atomic<std::uint32_t>& word);
/// A breath inside a spinning loop.
void cpu_relax();
/// Processors that this process may use.
int allowed_cores();

}  // namespace bellows
