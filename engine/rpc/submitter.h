// SPDX-License-Identifier: Apache-2.0
// The way of a request from the wire to the engine, whichever rpc brought it.
//
//   ASSIGN_OR_RETURN(exec::Request request, submitter.Check(proto, traceparent));
//   RETURN_IF_ERROR(submitter.Submit(std::move(request), std::move(sink)));
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/exec/engine.h"
#include "engine/rpc/generate_request.h"
#include "swiftcache/v1/engine.pb.h"

namespace swiftcache::engine::rpc {

inline constexpr absl::Duration kRetryDelay = absl::Seconds(1);  // what RESOURCE_EXHAUSTED asks of clients

/// Each refusal is logged and counted. Thread-safety: safe. Ownership: borrows the engine, from Open to Close. Errors:
/// UNAVAILABLE until Open, then those of ToRequest and Engine::Submit; RESOURCE_EXHAUSTED carries RetryInfo.
class Submitter {
 public:
  /// `random`: seeds and ids for requests without; called from any thread.
  Submitter(const WireLimits& limits, std::function<uint64_t()> random) : limits_(limits), random_(std::move(random)) {}

  const WireLimits& limits() const { return limits_; }
  void Open(exec::Engine& engine) { engine_ = &engine; }
  /// No Cancel reaches the engine any more. REQUIRES: nothing is submitted or checked from now on.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }

  /// Numbers the request. `traceparent`: of the client; one that is none is left out.
  absl::StatusOr<exec::Request> Check(const v1::EngineGenerateRequest& request, const std::string& traceparent) const;
  /// On error the sink is never called. REQUIRES: `request` is of Check.
  absl::Status Submit(exec::Request request, std::unique_ptr<exec::ResponseSink> sink) const;
  /// As Engine::Cancel; nothing after Close. REQUIRES: a request was submitted.
  void Cancel(const std::string& request_id, exec::RequestNumber number, std::optional<int32_t> index = {}) const
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::ReaderMutexLock lock(&mutex_);
    if (!closed_) engine_.load()->Cancel(request_id, number, index);
  }

 private:
  const WireLimits limits_;
  const std::function<uint64_t()> random_;
  std::atomic<exec::Engine*> engine_ = nullptr;
  mutable std::atomic<int64_t> last_number_ = 0;
  mutable absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace swiftcache::engine::rpc
