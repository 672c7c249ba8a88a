// SPDX-License-Identifier: Apache-2.0
// What a step has to tell the outside, kept until the loop's own state is settled.
//
//   outbox.Add({.sink = request->sink.get(), .index = 0, .token_id = 7});
//   outbox.Close(std::move(request), absl::OkStatus(), since_arrival);
//   ...blocks are free, the load is published...
//   observer->Deliver(outbox.Take());
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/exec/engine_metrics.h"
#include "engine/exec/live_request.h"
#include "engine/exec/request.h"

namespace swiftcache::engine::exec {

/// What a sink is told of one token, or of the end without one.
struct OutboundToken {
  ResponseSink* sink = nullptr;
  int32_t index = 0;
  std::optional<int32_t> token_id = {};
  std::optional<TokenLogprob> logprob = {};
  std::optional<FinishReason> finish = {};
  std::optional<Usage> usage = {};
  std::optional<absl::Duration> since_last = {};  // since the token before; none: it is the first
};

struct ClosedRequest {
  std::unique_ptr<LiveRequest> request;  // holds no block any more
  absl::Status status;
  absl::Duration since_arrival;
};

/// Of one step: its tokens, and behind them what ended. Ownership: of what ended; the sinks of the tokens live as long
/// as their requests, which end in this batch or in a later one.
struct OutboundBatch {
  std::vector<OutboundToken> tokens = {};
  std::vector<ClosedRequest> closed = {};
  bool empty() const { return tokens.empty() && closed.empty(); }
};

/// Thread-safety: none. Ownership: owns closed requests until Take. Errors: none.
class Outbox {
 public:
  /// REQUIRES: the request whose sink it is lives until Take, or is closed here.
  void Add(OutboundToken token) { batch_.tokens.push_back(std::move(token)); }
  void Close(std::unique_ptr<LiveRequest> request, absl::Status status, absl::Duration since_arrival) {
    batch_.closed.push_back({std::move(request), std::move(status), since_arrival});
  }
  const std::vector<ClosedRequest>& closed() const { return batch_.closed; }
  OutboundBatch Take();

 private:
  OutboundBatch batch_;
};

/// Calls the sinks: every token, then, of each request that ended, a line in the log, `before_done` and OnDone, then
/// OnStepEnd of all that were called. The requests that ended are destroyed.
void CallSinks(
    OutboundBatch batch, EngineMetrics* metrics,
    const std::function<void(const LiveRequest&)>& before_done = [](const LiveRequest&) {});

}  // namespace swiftcache::engine::exec
