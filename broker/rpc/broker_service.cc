// SPDX-License-Identifier: Apache-2.0
#include "broker/rpc/broker_service.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "broker/rpc/caller.h"
#include "broker/rpc/proto_convert.h"
#include "broker/rpc/watch_stream.h"
#include "common/base/instance_token.h"
#include "common/base/name.h"
#include "common/rpc/proto_duration.h"
#include "common/rpc/status.h"

namespace swiftcache::broker::rpc {

BrokerDoor::BrokerDoor(loop::BrokerLoop& loop, const DoorOptions& options)
    : loop_(loop), options_(options), bytes_(std::make_shared<EventBytes>(options.max_unread_snapshot_bytes)) {
  Count("Register", &BrokerDoor::Register);
  Count("Heartbeat", &BrokerDoor::Heartbeat);
  Count("Deregister", &BrokerDoor::Deregister);
  Count("Watch", &BrokerDoor::OpenWatch);
  Count("ReportWindow", &BrokerDoor::ReportWindow);
  Count("RequestLease", &BrokerDoor::RequestLease);
  Count("ScaleUp", &BrokerDoor::ScaleUp);
  Count("ReportLease", &BrokerDoor::ReportLease);
  Count("LimitLease", &BrokerDoor::LimitLease);
  Count("RevokeLease", &BrokerDoor::RevokeLease);
}

grpc::ServerUnaryReactor* BrokerDoor::Register(grpc::CallbackServerContext* context, const v1::RegisterRequest* request,
                                               v1::RegisterResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status known = CheckToken(request->engine().instance_id(), request->token());
  if (!known.ok()) return Refuse(reactor, known);
  response->set_incarnation(loop_.incarnation());
  *response->mutable_heartbeat_interval() = DurationToProto(loop_.heartbeat_interval());
  *response->mutable_lease_ttl() = DurationToProto(loop_.lease_ttl());
  *response->mutable_scale_down_window() = DurationToProto(loop_.scale_down_window());
  loop::Tables::Registration registration{.info = FromProto(request->engine()), .given = {}, .limits = {}};
  for (const v1::Lease& lease : request->leases()) registration.given.push_back(FromProto(lease));
  for (const v1::LeaseLimit& limit : request->limits()) {
    if (IsName(limit.model_name())) registration.limits.push_back(FromProto(limit));
  }
  loop_.Register(std::move(registration), [reactor](absl::Status status, std::optional<absl::Duration> retry_after) {
    if (retry_after.has_value()) status = WithRetryDelay(std::move(status), *retry_after);
    reactor->Finish(ToGrpc(status));
  });
  return reactor;
}

grpc::ServerUnaryReactor* BrokerDoor::Heartbeat(grpc::CallbackServerContext* context,
                                                const v1::HeartbeatRequest* request, v1::HeartbeatResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (absl::Status known = CheckCaller(*request); !known.ok()) return Refuse(reactor, known);
  response->set_incarnation(loop_.incarnation());
  loop_.Heartbeat(CallerOf(*request), FromProto(request->load()),
                  [reactor, response](const absl::StatusOr<std::vector<ledger::BorrowerWeight>>& weights) {
                    if (weights.ok()) {
                      for (const auto& [instance_id, weight] : *weights) {
                        v1::HeartbeatResponse::BorrowerWeight& added = *response->add_weights();
                        added.set_instance_id(instance_id);
                        added.set_weight(weight);
                      }
                    }
                    reactor->Finish(ToGrpc(weights.status()));
                  });
  return reactor;
}

grpc::ServerUnaryReactor* BrokerDoor::Deregister(grpc::CallbackServerContext* context,
                                                 const v1::DeregisterRequest* request,
                                                 v1::DeregisterResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (absl::Status known = CheckCaller(*request); !known.ok()) return Refuse(reactor, known);
  loop_.Deregister(request->name(), request->instance_id(),
                   [reactor](absl::Status status) { reactor->Finish(ToGrpc(status)); });
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* BrokerDoor::OpenWatch(grpc::CallbackServerContext* context,
                                                                  const v1::WatchRequest* request) {
  const std::string name = request->watcher().empty() ? context->peer() : request->watcher();
  auto stream = std::make_shared<WatchStream>(absl::CHexEscape(name.substr(0, kMaxNameBytes)), request->instance_id(),
                                              options_.max_pending_watch_events, bytes_, loop_);
  stream->CutIfStalled(*context, options_.stall_timeout, stream);
  const absl::Status known = request->instance_id().empty() ? absl::OkStatus() : CheckCaller(*request);
  known.ok() ? stream->Start() : stream->Refuse(known);
  return stream.get();
}

}  // namespace swiftcache::broker::rpc
