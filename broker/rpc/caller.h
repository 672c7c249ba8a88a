// SPDX-License-Identifier: Apache-2.0
// Who calls the broker, and how a call is refused at its door.
//
//   if (absl::Status known = CheckCaller(*request); !known.ok()) return Refuse(reactor, known);
#pragma once

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "broker/loop/tables.h"
#include "common/base/instance_token.h"
#include "common/rpc/status.h"

namespace swiftcache::broker::rpc {

template <typename Request>
loop::Caller CallerOf(const Request& request) {
  return {.name = request.name(), .instance_id = request.instance_id(), .incarnation = request.incarnation()};
}

/// PERMISSION_DENIED: the request names an instance and does not show its token.
template <typename Request>
absl::Status CheckCaller(const Request& request) {
  return CheckToken(request.instance_id(), request.token());
}

inline grpc::ServerUnaryReactor* Refuse(grpc::ServerUnaryReactor* reactor, const absl::Status& why) {
  reactor->Finish(ToGrpc(why));
  return reactor;
}

}  // namespace swiftcache::broker::rpc
