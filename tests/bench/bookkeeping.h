// SPDX-License-Identifier: Apache-2.0
// What the parts of swiftcache-bookkeeping-bench have in common.
#pragma once

#include <cstdint>
#include <ctime>

#include "glog/logging.h"

namespace swiftcache::engine {

constexpr int64_t kBlockTokens = 16;
constexpr int64_t kTailTokens = 64;    // of a prompt, shared with nobody
constexpr double kMicrosAtMost = 2e6;  // of the steps of one line

/// Of the calling thread.
inline double CpuMicros() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

/// The mean of 128 steps: a row has eight new blocks in them. World::Step returns the tokens of a step.
template <typename World>
double MicrosOfAStep(World& world, int64_t rows) {
  const double begin = CpuMicros();
  int64_t steps = 0;
  for (; steps < 128 && CpuMicros() - begin < kMicrosAtMost; ++steps) {
    CHECK_EQ(world.Step(), rows) << "a row waits";
  }
  return (CpuMicros() - begin) / static_cast<double>(steps);
}

struct Sizes {
  int64_t rows = 256;
  int64_t leases = 10;
  int64_t blocks = 100000;  // half of them in leases, where there are any
  int64_t prompt_tokens = 1000;
  int64_t waiting = 0;  // requests behind the rows; in the whole loop alone
  bool shares = false;  // without leases: would lend and borrow; in the whole loop alone
};

/// The whole step loop around a model that computes nothing.
void MeasureLoop();
/// What it costs there to share with nobody: 64 sequences of 4,096 tokens, alone and sharing, in turns.
void MeasureUnused();
/// 256 such steps of the one or the other, for callgrind.
void CountUnused(bool shares);

}  // namespace swiftcache::engine
