// SPDX-License-Identifier: Apache-2.0
// The answer of a call in one message. What the call takes of memory counts until the answer has been written, which is
// as late as its client likes: so a client that does not read is cut.
//
//   auto* held = new HeldAnswer(*context, budget, answer_timeout);  // deletes itself
//   held->End(held->Hold(request->SpaceUsedLong()));
//   return held;
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/byte_budget.h"

namespace swiftcache::gateway::rpc {

/// Thread-safety: none, but gRPC may call whenever it likes. Ownership: owns itself until gRPC's OnDone; borrows the
/// context, which lives as long, and the budget. Errors: a client that does not read in time gets DEADLINE_EXCEEDED.
class HeldAnswer final : public grpc::ServerUnaryReactor {
 public:
  /// `answer_timeout`: from End until the answer has been written, once more for each 32 MiB that the call holds.
  HeldAnswer(grpc::CallbackServerContext& context, ByteBudget& budget, absl::Duration answer_timeout)
      : context_(context), answer_timeout_(answer_timeout), limit_bytes_(budget.limit_bytes()), held_(budget) {}

  /// Bytes that the call holds from now until its end. Errors: RESOURCE_EXHAUSTED: the budget has no room for them.
  absl::Status Hold(size_t bytes);
  /// Last, and once: sends the answer, or the error.
  void End(const absl::Status& status);

  void OnDone() override { delete this; }

 private:
  ~HeldAnswer() override = default;

  grpc::CallbackServerContext& context_;
  const absl::Duration answer_timeout_;
  const int64_t limit_bytes_;
  ByteShare held_;
  grpc::Alarm alarm_;
};

}  // namespace swiftcache::gateway::rpc
