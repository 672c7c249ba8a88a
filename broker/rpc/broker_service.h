// SPDX-License-Identifier: Apache-2.0
// The broker's gRPC service ("door"): translates a request, calls the loop, translates the response.
//
//   BrokerDoor door(*loop, {});
//   ASSIGN_OR_RETURN(auto server, RpcServer::Create({.listen = "127.0.0.1:50050"}, {&door}));
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "broker/loop/broker_loop.h"
#include "broker/rpc/event_bytes.h"
#include "common/rpc/counted_service.h"
#include "common/rpc/stall_timeout.h"
#include "swiftcache/v1/broker.grpc.pb.h"

namespace swiftcache::broker::rpc {

struct DoorOptions {
  size_t max_pending_watch_events = 1024;  // of one watcher; beyond, it is dropped as too slow
  /// Of all watchers together: several times the largest table. A snapshot for which there is no room is refused.
  int64_t max_unread_snapshot_bytes = int64_t{512} << 20;
  absl::Duration stall_timeout = kStallTimeout;  // a watcher that reads nothing for so long is cut
};

/// Checks the token of every call that an engine makes in its own name. Thread-safety: safe. Ownership: borrows the loop,
/// which outlives the server that runs this door. Errors: as in broker.proto.
class BrokerDoor final : public CountedService<v1::BrokerService> {
 public:
  BrokerDoor(loop::BrokerLoop& loop, const DoorOptions& options);

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context, const v1::RegisterRequest* request,
                                     v1::RegisterResponse* response) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context, const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* Deregister(grpc::CallbackServerContext* context, const v1::DeregisterRequest* request,
                                       v1::DeregisterResponse* response) override;

  // lease_rpcs.cc
  grpc::ServerUnaryReactor* ReportWindow(grpc::CallbackServerContext* context, const v1::ReportWindowRequest* request,
                                         v1::ReportWindowResponse* response) override;
  grpc::ServerUnaryReactor* RequestLease(grpc::CallbackServerContext* context, const v1::RequestLeaseRequest* request,
                                         v1::RequestLeaseResponse* response) override;
  grpc::ServerUnaryReactor* ScaleUp(grpc::CallbackServerContext* context, const v1::ScaleUpRequest* request,
                                    v1::ScaleUpResponse* response) override;
  grpc::ServerUnaryReactor* ReportLease(grpc::CallbackServerContext* context, const v1::ReportLeaseRequest* request,
                                        v1::ReportLeaseResponse* response) override;
  grpc::ServerUnaryReactor* LimitLease(grpc::CallbackServerContext* context, const v1::LimitLeaseRequest* request,
                                       v1::LimitLeaseResponse* response) override;
  grpc::ServerUnaryReactor* RevokeLease(grpc::CallbackServerContext* context, const v1::RevokeLeaseRequest* request,
                                        v1::RevokeLeaseResponse* response) override;

  /// Answers Watch, with WatchResponses that are bytes already.
  grpc::ServerWriteReactor<grpc::ByteBuffer>* OpenWatch(grpc::CallbackServerContext* context,
                                                        const v1::WatchRequest* request);

 private:
  loop::BrokerLoop& loop_;
  const DoorOptions options_;
  const std::shared_ptr<EventBytes> bytes_;  // of all streams
};

}  // namespace swiftcache::broker::rpc
