// SPDX-License-Identifier: Apache-2.0
// More weight for a thread that mostly waits and then acts at once and shortly, beside others that compute: with a short
// slice alone (common/sync/scheduler_slice.h) one that has just run is at times made to wait for the kernel's next tick.
// Real time would do that more surely, but costs those that compute more: a donor's tokens took 2 to 5 % longer beside its
// borrower (tests/bench/README.md).
//
//   std::thread([] { if (!SetUrgent()) ...; });    // first in the thread; what it starts inherits it
#pragma once

#include <sys/resource.h>

namespace swiftcache {

inline constexpr int kUrgentNiceness = -15;  // beside the thread's before

/// Errors: false where the system does not allow it (RLIMIT_NICE, or CAP_SYS_NICE): the thread is scheduled as it was.
inline bool SetUrgent() {  // Linux: each thread has a niceness of its own
  return setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kUrgentNiceness) == 0;
}

}  // namespace swiftcache
