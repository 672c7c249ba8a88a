// SPDX-License-Identifier: Apache-2.0
// How fast all threads together can read memory: what nothing that reads as many bytes can be faster than.
//
//   BandwidthLoop memory(bytes, threads);
//   const double share = memory.BestSeconds() / step_seconds;
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/backend/cpu/memory.h"
#include "engine/backend/cpu/thread_pool.h"

namespace swiftcache {

/// Reads the same bytes again and again, with the widest loads that the machine has and as little arithmetic as keeps
/// them. As with a step's weights, what of them fits the last cache may be read from there.
/// Thread-safety: none. Ownership: owns memory and threads.
class BandwidthLoop {
 public:
  BandwidthLoop(int64_t bytes, int threads);

  /// Of the fastest of four passes: two with one contiguous part for each thread and prefetching in software, two with
  /// pieces of a MiB that threads claim in turn.
  double BestSeconds();

 private:
  double PassSeconds(int64_t part_bytes, int64_t ahead_bytes);

  engine::backend::cpu::HostMemory memory_;
  engine::backend::cpu::ThreadPool pool_;
  std::atomic<uint64_t> sink_{0};
};

}  // namespace swiftcache
