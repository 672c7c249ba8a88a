// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/broker_connection.h"

#include <grpcpp/client_context.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "common/rpc/watch_snapshot.h"
#include "services/ctl/commands.h"
#include "services/ctl/complaint.h"

namespace swiftcache::services::ctl {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);

}  // namespace

BrokerConnection::BrokerConnection(const std::string& broker)
    : address_(broker), stub_(v1::BrokerService::NewStub(CreateRpcChannel(broker, {}))) {}

absl::Status BrokerConnection::Explain(const grpc::Status& status) const {
  const absl::Status plain = FromGrpc(status);
  // CANCELLED, too, is a server of another protocol.
  if (absl::IsUnimplemented(plain) || absl::IsCancelled(plain) || SpeaksHttp1(plain)) {
    return absl::UnimplementedError(NotThatServer("broker", address_, Addresses().broker, plain));
  }
  if (!absl::IsUnavailable(plain) && !absl::IsDeadlineExceeded(plain)) return plain;
  return absl::Status(plain.code(), absl::StrCat("no broker answers at ", address_, " (", status.error_message(),
                                                 "); start one or set --broker"));
}

absl::StatusOr<v1::WatchResponse> BrokerConnection::Snapshot() {
  grpc::ClientContext context;
  SetTimeout(context, kTimeout);
  v1::WatchRequest request;
  request.set_watcher("swiftcachectl");
  auto reader = stub_->Watch(&context, request);
  v1::WatchResponse first;
  const bool got = reader->Read(&first) && (!first.has_snapshot() || ReadWholeSnapshot(*reader, first));
  context.TryCancel();
  const grpc::Status end = reader->Finish();
  if (got && first.has_snapshot()) return first;
  if (got) return absl::InternalError(absl::StrCat("broker ", address_, " began with news, wants a snapshot"));
  return Explain(end);
}

absl::Status BrokerConnection::Follow(grpc::ClientContext& context,
                                      const std::function<void(const v1::WatchResponse&)>& on_news) {
  v1::WatchRequest request;
  request.set_watcher("swiftcachectl");
  auto reader = stub_->Watch(&context, request);
  v1::WatchResponse news;
  while (reader->Read(&news) && (!news.has_snapshot() || ReadWholeSnapshot(*reader, news))) on_news(news);
  return Explain(reader->Finish());
}

absl::Status BrokerConnection::LimitLease(const std::string& model_name, std::optional<int64_t> max_borrowed_bytes) {
  grpc::ClientContext context;
  SetTimeout(context, kTimeout);
  v1::LimitLeaseRequest request;
  request.set_model_name(model_name);
  if (max_borrowed_bytes.has_value()) request.set_max_borrowed_bytes(*max_borrowed_bytes);
  v1::LimitLeaseResponse response;
  return Explain(stub_->LimitLease(&context, request, &response));
}

absl::Status BrokerConnection::RevokeLease(int64_t lease_id) {
  grpc::ClientContext context;
  SetTimeout(context, kTimeout);
  v1::RevokeLeaseRequest request;
  request.set_lease_id(lease_id);
  v1::RevokeLeaseResponse response;
  return Explain(stub_->RevokeLease(&context, request, &response));
}

}  // namespace swiftcache::services::ctl
