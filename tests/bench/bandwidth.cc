// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/bandwidth.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/base/units.h"
#include "tests/bench/timing.h"

namespace swiftcache {
namespace {

using Line = uint64_t __attribute__((vector_size(64)));

constexpr int64_t kAheadBytes = 4096;  // as far as the engine's kernels prefetch

// The sum of `count` lines, so that the compiler reads them. `ahead`: lines; 0: the processor's own prefetching alone.
__attribute__((target_clones("avx512f", "avx2", "default"))) uint64_t SumOf(const Line* line, int64_t count,
                                                                            int64_t ahead) {
  constexpr int kSums = 4;  // of which an addition does not wait for the one before
  Line sums[kSums] = {};
  int64_t i = 0;
  if (ahead > 0) {
    for (; i + kSums <= count; i += kSums) {
#pragma GCC unroll 4
      for (int j = 0; j < kSums; ++j) {
        __builtin_prefetch(line + i + j + ahead);
        sums[j] += line[i + j];
      }
    }
  }
  for (; i + kSums <= count; i += kSums) {
#pragma GCC unroll 4
    for (int j = 0; j < kSums; ++j) sums[j] += line[i + j];
  }
  for (; i < count; ++i) sums[0] += line[i];
  const Line all = sums[0] + sums[1] + sums[2] + sums[3];
  uint64_t sum = 0;
  for (int j = 0; j < 8; ++j) sum += all[j];
  return sum;
}

}  // namespace

BandwidthLoop::BandwidthLoop(int64_t bytes, int threads)
    : memory_(*engine::backend::cpu::HostMemory::Allocate(bytes)), pool_(threads) {
  std::memset(memory_.data(), 1, bytes);
}

double BandwidthLoop::PassSeconds(int64_t part_bytes, int64_t ahead_bytes) {
  constexpr int64_t kLineBytes = sizeof(Line);
  const int64_t lines = CeilDiv(memory_.bytes(), kLineBytes), part = CeilDiv(part_bytes, kLineBytes);
  return SecondsOf([&] {
    pool_.ParallelFor(CeilDiv(lines, part), [&](int64_t i, int) {
      const uint64_t sum =
          SumOf(memory_.as<Line>() + i * part, std::min(part, lines - i * part), ahead_bytes / kLineBytes);
      sink_.fetch_add(sum, std::memory_order_relaxed);
    });
  });
}

double BandwidthLoop::BestSeconds() {
  constexpr int kPasses = 2;
  double best = std::numeric_limits<double>::infinity();
  for (int pass = 0; pass < kPasses; ++pass) {
    best = std::min(best, PassSeconds(CeilDiv(memory_.bytes(), pool_.threads()), kAheadBytes));
    best = std::min(best, PassSeconds(kMiB, 0));
  }
  return best;
}

}  // namespace swiftcache
