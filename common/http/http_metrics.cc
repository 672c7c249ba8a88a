// SPDX-License-Identifier: Apache-2.0
#include "common/http/http_metrics.h"

#include <string>
#include <utility>

namespace swiftcache {
namespace {

// Counted from zero: a series that begins with its first event has no rate then.
constexpr int kUsualStatuses[] = {200, 400, 403, 404, 405, 408, 413, 429, 431, 500, 503, 504};

}  // namespace

void HttpMetrics::Watch(HttpServer::Options& options) {
  options.on_response = [this](int status) { CountResponse(status); };
  options.on_slow_reader_cut = [this] { CountSlowReader(); };
}

void HttpMetrics::CountResponse(int status) {
  absl::MutexLock lock(&mutex_);
  ++responses_[status];
}

void HttpMetrics::CountSlowReader() {
  absl::MutexLock lock(&mutex_);
  ++slow_readers_;
}

// One call at a time: another one would go on without what this one has taken and not added yet.
void HttpMetrics::Export(Metrics& metrics) {
  absl::MutexLock exporting(&exporting_);
  std::map<int, int64_t> responses;
  int64_t slow_readers = 0;
  {
    absl::MutexLock lock(&mutex_);
    responses = std::exchange(responses_, {});
    slow_readers = std::exchange(slow_readers_, 0);
  }
  for (const int status : kUsualStatuses) responses.try_emplace(status, 0);
  for (const auto& [status, count] : responses) {
    metrics
        .Counter("swiftcache_http_responses_total",
                 "HTTP responses by status, also those of requests that were refused before a handler saw them.",
                 {{"code", std::to_string(status)}})
        .Increment(static_cast<double>(count));
  }
  metrics.Counter("swiftcache_http_slow_readers_cut_total", "HTTP clients that were disconnected as they did not read.")
      .Increment(static_cast<double>(slow_readers));
}

}  // namespace swiftcache
