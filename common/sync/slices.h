// SPDX-License-Identifier: Apache-2.0
// How long the scheduler lets a thread run at a time. Threads that do little get in soon after they wake if they ask
// for short slices, however busy the cores are; their share of them stays what it was.
//
//   AskForSlices(Slices::kShort);   // first in main: threads inherit it
//   AskForSlices(Slices::kUsual);   // first in a thread that computes
#pragma once

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace swiftcache {

enum class Slices { kUsual, kShort };

/// Of the calling thread. Linux 6.12 and later (EEVDF) heed it, others keep their ways. Errors: none; it is a wish.
inline void AskForSlices(Slices slices) {
  struct {  // man 2 sched_setattr; libc's headers do not have it
    uint32_t size = 48, policy = 0;
    uint64_t flags = 0x08;  // SCHED_FLAG_KEEP_POLICY
    int32_t nice = 0;
    uint32_t priority = 0;
    uint64_t runtime_ns = 0;  // of a slice; 0: the system's
    uint64_t deadline_ns = 0, period_ns = 0;
  } wish;
  static_assert(sizeof(wish) == 48);
  if (slices == Slices::kShort) wish.runtime_ns = 100'000;  // the least there is
  wish.nice = getpriority(PRIO_PROCESS, 0);
  (void)syscall(SYS_sched_setattr, 0, &wish, 0);
}

}  // namespace swiftcache
