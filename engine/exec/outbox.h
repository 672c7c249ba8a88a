// SPDX-License-Identifier: Apache-2.0
// What a step has to tell the outside, kept until the loop's own state is settled.
//
//   outbox.Add(*request, std::move(event));
//   outbox.Close(std::move(request), absl::OkStatus());
//   ...blocks are free, the load is published...
//   outbox.Send();
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/exec/live_request.h"
#include "engine/exec/request.h"

namespace swiftcache::engine::exec {

/// Thread-safety: none. Ownership: owns closed requests until Send. Errors: none.
class Outbox {
 public:
  struct Closed {
    std::unique_ptr<LiveRequest> request;
    absl::Status status;
  };

  /// REQUIRES: the request lives until Send, or is closed here.
  void Add(const LiveRequest& request, TokenEvent event) { events_.emplace_back(request.sink.get(), std::move(event)); }
  void Close(std::unique_ptr<LiveRequest> request, absl::Status status) {
    closed_.push_back({std::move(request), std::move(status)});
  }
  const std::vector<Closed>& closed() const { return closed_; }

  /// Calls the sinks: every event, then OnDone of what was closed, which is then destroyed.
  void Send();

 private:
  std::vector<std::pair<ResponseSink*, TokenEvent>> events_;
  std::vector<Closed> closed_;
};

}  // namespace swiftcache::engine::exec
