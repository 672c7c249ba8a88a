// SPDX-License-Identifier: Apache-2.0
// The thread that tells the outside what steps have to say, so that the loop's thread does not: sinks make messages and
// write to sockets, the end of a request is logged and its memory given back.
//
//   Outbound outbound(&metrics, [](const LiveRequest& request) { ...its id is free... });
//   outbound.Start();
//   outbound.Deliver(outbox.Take());     // the loop's thread, once a step
//   outbound.Stop();                     // when the loop has ended
#pragma once

#include <functional>
#include <thread>

#include "common/sync/mailbox.h"
#include "engine/exec/engine_metrics.h"
#include "engine/exec/live_request.h"
#include "engine/exec/outbox.h"

namespace swiftcache::engine::exec {

/// Tells batches one after the other, in the order in which they came. What waits are tokens of requests that have not
/// heard of their end yet; who delivers bounds it: EngineImpl refuses requests while those are too many.
/// Thread-safety: Deliver is the loop's, Start and Stop are the owner's; `before_done` (see CallSinks) and the sinks
/// are called by the thread within. Ownership: owns what was delivered; borrows the metrics. Errors: none.
class Outbound {
 public:
  Outbound(EngineMetrics* metrics, std::function<void(const LiveRequest&)> before_done)
      : metrics_(metrics), before_done_(std::move(before_done)) {}
  ~Outbound() { Stop(); }

  void Start();
  /// Never waits.
  void Deliver(OutboundBatch batch);
  /// Returns when everything is told that was delivered before; without Start, the caller's thread tells it.
  void Stop();

 private:
  void Run();

  EngineMetrics* const metrics_;
  const std::function<void(const LiveRequest&)> before_done_;
  Mailbox<OutboundBatch> mailbox_;
  std::thread thread_;
};

}  // namespace swiftcache::engine::exec
