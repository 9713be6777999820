#include "bellows/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace bellows {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceAndReturnsWhenAllAreDone) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::size_t tasks : {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{1000}}) {
      std::vector<std::atomic<int>> calls(tasks);
      pool.run(tasks, [&](std::size_t i) { ++calls[i]; });
      for (const auto& count : calls) EXPECT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, ManyShortJobsInARowNeverMixTheirTasks) {
  ThreadPool pool(4);
  for (int job = 0; job < 500; ++job) {
    std::atomic<int> sum{0};
    pool.run(8, [&](std::size_t i) { sum += static_cast<int>(i) + job; });
    ASSERT_EQ(sum.load(), 28 + 8 * job);
  }
}

TEST(ThreadPool, RethrowsATasksExceptionAndGoesOnWorking) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    EXPECT_THROW(pool.run(20,
                          [](std::size_t i) {
                            if (i == 7) throw std::runtime_error("seven");
                          }),
                 std::runtime_error);
    std::atomic<int> calls{0};
    pool.run(20, [&](std::size_t) { ++calls; });
    EXPECT_EQ(calls.load(), 20);
  }
}

TEST(ThreadPool, LessThanOneThreadIsTheCallerAlone) { EXPECT_EQ(ThreadPool(0).threads(), 1); }

}  // namespace
}  // namespace bellows
