// SPDX-License-Identifier: Apache-2.0
// The time slice for which the kernel lets a thread run before another gets the core. A thread that mostly waits and
// asks for short slices runs sooner after it wakes up, even if all cores are busy; its share of CPU time is unchanged.
//
//   SetSchedulerSlice(SchedulerSlice::kShort);    // first in main: threads inherit it
//   SetSchedulerSlice(SchedulerSlice::kDefault);  // first in a thread that computes
#pragma once

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace swiftcache {

enum class SchedulerSlice { kDefault, kShort };

/// Sets the slice of the calling thread. Linux 6.12 and later (EEVDF) use it, older kernels ignore it. Errors: none: a
/// refusal changes nothing but the latency.
inline void SetSchedulerSlice(SchedulerSlice slice) {
  struct {  // man 2 sched_setattr; libc's headers do not have it
    uint32_t size = 48, policy = 0;
    uint64_t flags = 0x08;  // SCHED_FLAG_KEEP_POLICY
    int32_t nice = 0;
    uint32_t priority = 0;
    uint64_t runtime_ns = 0;  // of a slice; 0: the system's default
    uint64_t deadline_ns = 0, period_ns = 0;
  } attributes;
  static_assert(sizeof(attributes) == 48);
  if (slice == SchedulerSlice::kShort) attributes.runtime_ns = 100'000;  // the shortest that the kernel accepts
  attributes.nice = getpriority(PRIO_PROCESS, 0);
  (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace swiftcache
