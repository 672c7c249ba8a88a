// SPDX-License-Identifier: Apache-2.0
// BrokerDoor, the part about leases.
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "broker/rpc/broker_service.h"
#include "broker/rpc/caller.h"
#include "broker/rpc/proto_convert.h"
#include "common/base/name.h"
#include "common/rpc/status.h"

namespace swiftcache::broker::rpc {

grpc::ServerUnaryReactor* BrokerDoor::ReportWindow(grpc::CallbackServerContext* context,
                                                   const v1::ReportWindowRequest* request, v1::ReportWindowResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (absl::Status known = CheckCaller(*request); !known.ok()) return Refuse(reactor, known);
  loop_.ReportWindow(CallerOf(*request),
                     {.used_blocks = request->used_blocks(),
                      .waiting_blocks = request->waiting_blocks(),
                      .window_max_request_tokens = request->window_max_request_tokens(),
                      .window_peak_blocks = request->window_peak_blocks(),
                      .cache_blocks = request->cache_blocks()},
                     [reactor](absl::Status status) { reactor->Finish(ToGrpc(status)); });
  return reactor;
}

grpc::ServerUnaryReactor* BrokerDoor::RequestLease(grpc::CallbackServerContext* context,
                                                   const v1::RequestLeaseRequest* request,
                                                   v1::RequestLeaseResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (absl::Status known = CheckCaller(*request); !known.ok()) return Refuse(reactor, known);
  loop_.RequestLease(CallerOf(*request),
                     {.key = request->request_key(),
                      .want_bytes = request->want_bytes(),
                      .waiting_tokens = request->waiting_tokens(),
                      .held_bytes = request->held_bytes()},
                     [reactor, response](absl::StatusOr<ledger::LeaseResponse> answer) {
                       if (answer.ok()) {
                         for (const ledger::Lease& lease : answer->leases) *response->add_leases() = ToProto(lease);
                         response->set_shortage(answer->shortage);
                         response->set_lendable_bytes(answer->lendable_bytes);
                         response->set_coming_bytes(answer->coming_bytes);
                       }
                       reactor->Finish(ToGrpc(answer.status()));
                     });
  return reactor;
}

grpc::ServerUnaryReactor* BrokerDoor::ScaleUp(grpc::CallbackServerContext* context, const v1::ScaleUpRequest* request,
                                              v1::ScaleUpResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (absl::Status known = CheckCaller(*request); !known.ok()) return Refuse(reactor, known);
  loop_.ScaleUp(CallerOf(*request), request->need_blocks(),
                [reactor, response](absl::StatusOr<std::vector<ledger::LeaseId>> leases) {
                  if (leases.ok()) {
                    for (const ledger::LeaseId id : *leases) response->add_lease_ids(id.value());
                  }
                  reactor->Finish(ToGrpc(leases.status()));
                });
  return reactor;
}

grpc::ServerUnaryReactor* BrokerDoor::ReportLease(grpc::CallbackServerContext* context,
                                                  const v1::ReportLeaseRequest* request, v1::ReportLeaseResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (absl::Status known = CheckCaller(*request); !known.ok()) return Refuse(reactor, known);
  loop_.ReportLease(CallerOf(*request), FromProto(request->lease()), absl::CHexEscape(request->reason()),
                    [reactor](absl::Status status) { reactor->Finish(ToGrpc(status)); });
  return reactor;
}

grpc::ServerUnaryReactor* BrokerDoor::LimitLease(grpc::CallbackServerContext* context,
                                                 const v1::LimitLeaseRequest* request, v1::LimitLeaseResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (request->model_name().empty() || !IsName(request->model_name())) {
    return Refuse(reactor, absl::InvalidArgumentError(absl::StrCat(
                               "model_name '", absl::CHexEscape(request->model_name().substr(0, kMaxNameBytes)),
                               "': wanted the name of a model, as engines register it")));
  }
  std::optional<int64_t> max_borrowed_bytes;
  if (request->has_max_borrowed_bytes()) max_borrowed_bytes = request->max_borrowed_bytes();
  loop_.LimitLease(request->model_name(), max_borrowed_bytes,
                   [reactor](absl::Status status) { reactor->Finish(ToGrpc(status)); });
  return reactor;
}

grpc::ServerUnaryReactor* BrokerDoor::RevokeLease(grpc::CallbackServerContext* context,
                                                  const v1::RevokeLeaseRequest* request, v1::RevokeLeaseResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_.RevokeLease(ledger::LeaseId(request->lease_id()),
                    [reactor](absl::Status status) { reactor->Finish(ToGrpc(status)); });
  return reactor;
}

}  // namespace swiftcache::broker::rpc
