// SPDX-License-Identifier: Apache-2.0
// What every server tells of itself when its metrics are read: that it is there, whether it takes requests, what it uses.
//
//   http_options.metrics = [&] {
//     return Scrape(metrics, {.program = kProgram, .ready = ready, .draining = draining});
//   };
#pragma once

#include <string>

#include "common/metrics/metrics.h"

namespace swiftcache::services {

struct ProcessState {
  std::string program;
  bool ready = false;          // takes requests: what /health says
  bool draining = false;       // ends
  Metrics::Labels build = {};  // of swiftcache_build_info, beside program and version
};

/// The response of /metrics: `metrics` as they are, and of this process swiftcache_build_info, swiftcache_ready,
/// swiftcache_draining, swiftcache_log_lines_lost_total and, under the names that all of Prometheus' clients use,
/// processor time, memory, file descriptors and start. What the system does not tell is absent.
/// Thread-safety: safe. Errors: none. Units: seconds, bytes.
std::string Scrape(Metrics& metrics, const ProcessState& state);

}  // namespace swiftcache::services
