// SPDX-License-Identifier: Apache-2.0
// Where the time of a prefill went (paper, section 5.4 and figure 10).
//
//   PrefillTimes times = {.execute = absl::Milliseconds(80)};
#pragma once

#include "absl/time/time.h"

namespace swiftcache::engine::exec {

/// From the arrival of a request to its first token. queue + execute and what of load was not hidden (kv_stall_seconds)
/// are that time; load and store go on beside it. A request in a step is charged the whole step, as it waits for all of
/// it. Thread-safety: a value.
struct PrefillTimes {
  absl::Duration queue;    // not in a step: before the first and between steps
  absl::Duration execute;  // in a step, less the time that it stood still for KV
  absl::Duration load;  // that the transport took for those steps' loads from leases; none where they are read in place
  absl::Duration store;  // that the transport took for stores to leases during those steps, whosever blocks these were
};

}  // namespace swiftcache::engine::exec
