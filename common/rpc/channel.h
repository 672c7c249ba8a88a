// SPDX-License-Identifier: Apache-2.0
// Client channels of one kind: a dead peer is noticed, a peer that came back is found within about a second.
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
  /// A silent connection is pinged this often, with or without calls on it, and given up when the answer stays out as
  /// long.
  absl::Duration keepalive = absl::Seconds(10);
};

/// Does not block and does not fail: a peer that is not there shows as UNAVAILABLE on calls. Proxies named by the
/// environment are not used. Each channel has a connection of its own.
std::shared_ptr<grpc::Channel> CreateRpcChannel(const std::string& address, const RpcChannelOptions& options);

/// The call's deadline: `timeout` from now on.
void SetTimeout(grpc::ClientContext& context, absl::Duration timeout);

}  // namespace swiftcache
