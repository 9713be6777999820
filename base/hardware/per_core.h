#pragma once
#include <functional>
#include <vector>

namespace bellows {

/// Runs work(i) on one thread pinned to cores[i], all starting together; returns when all are done.
void run_on_cores(const std::vector<int>& cores, const std::function<void(std::size_t)>& work);

}  // namespace bellows
