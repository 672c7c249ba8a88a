// SPDX-License-Identifier: Apache-2.0
// absl::Status <-> grpc::Status; the codes have the same numbers. Payloads travel as google.rpc.Status details
// (grpc-status-details-bin), so that any client can read them.
//
//   return ToGrpc(WithRetryDelay(absl::ResourceExhaustedError("queue full"), absl::Seconds(1)));
//   std::optional<absl::Duration> wait = RetryDelayOf(FromGrpc(status));
#pragma once

#include <grpcpp/support/status.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace swiftcache {

/// The status' message as valid UTF-8, for the wire: other bytes become '?'.
std::string WireMessage(const absl::Status& status);

/// With the WireMessage.
grpc::Status ToGrpc(const absl::Status& status);

/// Details that do not parse are dropped; code and message stay.
absl::Status FromGrpc(const grpc::Status& status);

/// The status with a google.rpc.RetryInfo. REQUIRES: !status.ok(), delay >= 0.
absl::Status WithRetryDelay(absl::Status status, absl::Duration delay);

/// The delay in its google.rpc.RetryInfo, if it has one.
std::optional<absl::Duration> RetryDelayOf(const absl::Status& status);

}  // namespace swiftcache
