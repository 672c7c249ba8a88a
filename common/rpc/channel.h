// SPDX-License-Identifier: Apache-2.0
// Creates the client channels of all processes: they notice a dead peer, and reconnect within about a second when it is
// back.
//
//   auto stub = v1::BrokerService::NewStub(CreateRpcChannel("127.0.0.1:50050", {}));
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace swiftcache {

/// Thread-safety: a value.
struct RpcChannelOptions {
  int max_message_bytes = 64 << 20;
  absl::Duration max_reconnect_backoff = absl::Seconds(1);
  /// A silent connection is pinged at this interval, with or without calls on it, and closed if a ping is not answered
  /// within the same time.
  absl::Duration keepalive = absl::Seconds(10);
};

/// Does not block and does not fail: a peer that is not there shows as UNAVAILABLE on calls. Proxies named by the
/// environment are not used. Each channel has a connection of its own.
std::shared_ptr<grpc::Channel> CreateRpcChannel(const std::string& address, const RpcChannelOptions& options);

/// When the call fails with DEADLINE_EXCEEDED; absl::InfiniteFuture(): never.
void SetDeadline(grpc::ClientContext& context, absl::Time deadline);

/// The same, `timeout` from now on.
void SetTimeout(grpc::ClientContext& context, absl::Duration timeout);

}  // namespace swiftcache
