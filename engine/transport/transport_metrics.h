// SPDX-License-Identifier: Apache-2.0
// A transport's totals as metrics.
//
//   TransportMetrics metrics(registry, transport);
//   metrics.Update();   // before each scrape
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/metrics/metrics.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport {

/// swiftcache_kv_transfer_bytes_total{direction, transport}: `store` and `load` as a borrower, to and from donors;
/// `receive` as a donor, what borrowers stored. swiftcache_kv_transfer_seconds_total has the time in which something of
/// that direction was under way (overlapping transfers count once), so that the quotient is the speed.
/// Thread-safety: safe. Ownership: borrows both, which outlive it. Errors: none.
class TransportMetrics {
 public:
  TransportMetrics(Metrics& registry, const Transport& transport);
  void Update() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const Transport& transport_;
  absl::Mutex mutex_;  // two scrapes at once add nothing twice
  TransportStats told_ ABSL_GUARDED_BY(mutex_);
  prometheus::Counter &stored_, &loaded_, &received_, &store_seconds_, &load_seconds_;
};

}  // namespace swiftcache::engine::transport
