// SPDX-License-Identifier: Apache-2.0
// The metrics of a process's HTTP server. They are counted from the first response on, also where the labels of the
// process's metrics are known only later: an engine answers /health before it has its name.
//
//   HttpMetrics http_metrics;  // outlives the server
//   http_metrics.Watch(options);
//   options.metrics = [&] { http_metrics.Export(metrics); return metrics.Serialize(); };
#pragma once

#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/http/http_server.h"
#include "common/metrics/metrics.h"

namespace swiftcache {

/// Counts what a server answers and whom it cuts. Thread-safety: safe. Errors: none.
class HttpMetrics {
 public:
  /// Sets the two callbacks of `options`, which borrow this object.
  void Watch(HttpServer::Options& options);
  /// Adds what was counted since the last call.
  void Export(Metrics& metrics) ABSL_LOCKS_EXCLUDED(exporting_, mutex_);

 private:
  void CountResponse(int status) ABSL_LOCKS_EXCLUDED(mutex_);
  void CountSlowReader() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex exporting_ ABSL_ACQUIRED_BEFORE(mutex_);
  absl::Mutex mutex_;
  std::map<int, int64_t> responses_ ABSL_GUARDED_BY(mutex_);  // by status
  int64_t slow_readers_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace swiftcache
