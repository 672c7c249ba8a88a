// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/fakes/idle_cpu.h"

namespace swiftcache::engine::backend::cpu {
namespace {

TEST(ThreadPoolTest, EveryItemRunsExactlyOnceWhateverTheNumberOfThreads) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t items = 0; items < 200; ++items) {
      std::vector<int> counts(items, 0);
      pool.ParallelFor(items, [&](int64_t item, int worker) {
        EXPECT_GE(worker, 0);
        EXPECT_LT(worker, threads);
        ++counts[item];
      });
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), items);
      for (const int count : counts) EXPECT_EQ(count, 1);
    }
  }
}

TEST(ThreadPoolTest, ALoopSeesWhatTheLoopBeforeItWrote) {
  ThreadPool pool(3);
  std::vector<int64_t> values(64, 0);
  for (int round = 1; round <= 3000; ++round) {
    pool.ParallelFor(values.size(), [&](int64_t i, int worker) {
      const int64_t left = values[i];
      EXPECT_EQ(left, round - 1);
      values[i] = round;
    });
  }
}

TEST(ThreadPoolTest, WorkersThatSleptAreWokenAgain) {
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    absl::SleepFor(absl::Milliseconds(2));  // longer than a worker spins
    std::atomic<int64_t> sum{0};
    pool.ParallelFor(100, [&](int64_t item, int worker) { sum += item; });
    EXPECT_EQ(sum.load(), 4950);
  }
}

TEST(ThreadPoolTest, AnIdlePoolBurnsNoCpu) {
  ThreadPool pool(4);
  pool.ParallelFor(100, [](int64_t item, int worker) {});
  EXPECT_LT(fakes::IdleCpuShare(), 0.01);
}

}  // namespace
}  // namespace swiftcache::engine::backend::cpu
