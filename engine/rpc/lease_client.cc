// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/lease_client.h"

#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/log/log.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "common/rpc/watch_snapshot.h"
#include "common/sync/timed_mutex.h"
#include "engine/coordinator/broker_calls.h"
#include "engine/rpc/lease_convert.h"
#include "swiftcache/v1/broker.grpc.pb.h"

namespace swiftcache::engine::rpc {
namespace {

using coordinator::BrokerCall;
using coordinator::LeaseEvent;
using coordinator::LeaseRequest;
using coordinator::LeaseResponse;
using coordinator::Window;

// A call of ScaleUp. Owns itself until gRPC's callback.
struct ScaleUpCall {
  grpc::ClientContext context;
  v1::ScaleUpRequest request;
  v1::ScaleUpResponse response;
};

class GrpcLeaseClient final : public LeaseClient {
 public:
  GrpcLeaseClient(const Options& options, coordinator::LeaseBrokerEvents& events)
      : options_(options),
        events_(events),
        stub_(v1::BrokerService::NewStub(CreateRpcChannel(options.broker, {}))),
        sender_([this] { SendQueued(); }),
        watcher_([this] { Watch(); }) {}

  ~GrpcLeaseClient() override {
    {
      TimedMutexLock lock(&mutex_);
      stopped_ = true;
      if (watch_ != nullptr) watch_->TryCancel();
    }
    sender_.join();
    watcher_.join();
    TimedMutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &GrpcLeaseClient::NoScaleUpLocked));
  }

  void RequestLease(const LeaseRequest& request) override { Push(request); }
  void Report(const LeaseEvent& news) override { Push(news); }
  void ReportWindow(const Window& window) override { Push(window); }
  void Registered() override ABSL_LOCKS_EXCLUDED(mutex_) {
    TimedMutexLock lock(&mutex_);
    calls_.Registered();
  }
  void RequestScaleUp(int64_t question, int64_t need_blocks) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Push(BrokerCall call) ABSL_LOCKS_EXCLUDED(mutex_) {
    TimedMutexLock lock(&mutex_);
    calls_.Push(std::move(call));
  }
  bool HasCallLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || !calls_.empty(); }
  bool StoppedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_; }
  bool NoScaleUpLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return scale_ups_ == 0; }
  std::optional<BrokerCall> Next() ABSL_LOCKS_EXCLUDED(mutex_);
  bool WaitStopped(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  void SendQueued();
  absl::Status Send(const LeaseEvent& news);
  absl::Status Send(const LeaseRequest& lease_request);
  absl::Status Send(const Window& window);
  void Watch();
  bool Follow();
  void SetWatchContext(grpc::ClientContext* context) ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsOurs(const v1::Lease& lease) const;
  void DeliverSnapshot(const v1::WatchResponse::Snapshot& snapshot);

  template <typename Request>
  void SetIdentity(Request& request) const {
    const Identity identity = options_.identity();
    request.set_name(identity.name);
    request.set_instance_id(options_.instance_id);
    request.set_token(options_.token);
    request.set_incarnation(identity.incarnation);
  }
  // A lease is its donor's under the name that this has now, which may be another than when it was made.
  void SetIdentity(v1::ReportLeaseRequest& request) const {
    SetIdentity<v1::ReportLeaseRequest>(request);
    request.mutable_lease()->set_donor(request.name());
  }
  // Calls `method`, which is UNAVAILABLE while this engine is not registered.
  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (v1::BrokerService::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    Request request, Response& response) {
    SetIdentity(request);
    if (request.incarnation().empty()) return absl::UnavailableError("not registered at the broker");
    grpc::ClientContext context;
    SetTimeout(context, options_.rpc_timeout);
    return FromGrpc((stub_.get()->*method)(&context, request, &response));
  }

  const Options options_;
  coordinator::LeaseBrokerEvents& events_;
  const std::unique_ptr<v1::BrokerService::Stub> stub_;

  TimedMutex mutex_;
  coordinator::BrokerCalls calls_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* watch_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int64_t scale_ups_ ABSL_GUARDED_BY(mutex_) = 0;

  std::thread sender_, watcher_;  // last: they use everything above
};

bool GrpcLeaseClient::WaitStopped(absl::Duration timeout) {
  TimedMutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(this, &GrpcLeaseClient::StoppedLocked), timeout);
}

std::optional<BrokerCall> GrpcLeaseClient::Next() {
  TimedMutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &GrpcLeaseClient::HasCallLocked));
  return stopped_ ? std::nullopt : calls_.TakeNext();
}

void GrpcLeaseClient::SendQueued() {
  const auto send = [this](const auto& call) { return Send(call); };
  while (const std::optional<BrokerCall> call = Next()) {
    absl::Status status = std::visit(send, *call);
    while (MustRepeat(*call, status)) {
      if (WaitStopped(options_.retry_interval)) return;
      status = std::visit(send, *call);
    }
    TellFailure(*call, status, events_);
  }
}

absl::Status GrpcLeaseClient::Send(const LeaseEvent& news) {
  v1::ReportLeaseRequest request;
  *request.mutable_lease() = rpc::ToProto(news.lease);
  request.set_reason(news.reason);
  v1::ReportLeaseResponse response;
  return Call(&v1::BrokerService::Stub::ReportLease, request, response);
}

absl::Status GrpcLeaseClient::Send(const LeaseRequest& lease_request) {
  v1::RequestLeaseRequest request;
  request.set_request_key(lease_request.key);
  request.set_want_bytes(lease_request.want_bytes);
  request.set_waiting_tokens(lease_request.waiting_tokens);
  request.set_held_bytes(lease_request.held_bytes);
  v1::RequestLeaseResponse response;
  const absl::Status status = Call(&v1::BrokerService::Stub::RequestLease, request, response);
  if (!status.ok()) return status;
  LeaseResponse answer{.lendable_bytes = response.lendable_bytes(),
                       .coming_bytes = response.coming_bytes(),
                       .shortage = response.shortage()};
  for (const v1::Lease& lease : response.leases()) answer.offered_bytes += lease.num_bytes();
  events_.OnLeaseResponse(std::move(answer));
  return status;
}

absl::Status GrpcLeaseClient::Send(const Window& window) {
  v1::ReportWindowRequest request;
  request.set_used_blocks(window.used_blocks);
  request.set_waiting_blocks(window.waiting_blocks);
  request.set_window_max_request_tokens(window.max_request_tokens);
  request.set_window_peak_blocks(window.peak_blocks);
  request.set_cache_blocks(window.cache_blocks);
  v1::ReportWindowResponse response;
  return Call(&v1::BrokerService::Stub::ReportWindow, request, response);
}

void GrpcLeaseClient::RequestScaleUp(int64_t question, int64_t need_blocks) {
  auto* call = new ScaleUpCall;  // deleted by its callback
  SetIdentity(call->request);
  call->request.set_need_blocks(need_blocks);
  SetTimeout(call->context, options_.advice_timeout);
  {
    TimedMutexLock lock(&mutex_);
    ++scale_ups_;
  }
  stub_->async()->ScaleUp(&call->context, &call->request, &call->response, [this, call, question](grpc::Status status) {
    std::vector<kv::LeaseId> leases;
    for (const int64_t id : call->response.lease_ids()) leases.emplace_back(id);
    delete call;  // with its hold on the channel, while this is still here
    if (status.ok()) {
      events_.OnScaleUp(question, std::move(leases));
    } else {
      events_.OnScaleUp(question, FromGrpc(status));
    }
    TimedMutexLock lock(&mutex_);
    --scale_ups_;
  });
}

void GrpcLeaseClient::Watch() {
  do {
    const bool received = Follow();
    if (received && !WaitStopped(absl::ZeroDuration())) {
      LOG(INFO) << "the broker's news of leases ended; leases live on, watching again";
    }
  } while (!WaitStopped(options_.retry_interval));
}

// One stream from its snapshot to its end; a gap ends it too. True: something was received.
bool GrpcLeaseClient::Follow() {
  grpc::ClientContext context;
  SetWatchContext(&context);
  const Identity identity = options_.identity();  // as the broker had it, at least, when it made the snapshot
  v1::WatchRequest request;
  request.set_watcher(identity.name);
  request.set_instance_id(options_.instance_id);
  request.set_token(options_.token);
  auto reader = stub_->Watch(&context, request);
  v1::WatchResponse news;
  int64_t version = -1;
  while (reader->Read(&news)) {
    const bool snapshot = news.event_case() == v1::WatchResponse::kSnapshot;
    if (snapshot && !ReadWholeSnapshot(*reader, news)) {
      context.TryCancel();
      break;
    }
    if (version < 0) options_.on_incarnation(news.incarnation());
    if (!snapshot && news.version() != version + 1) {
      context.TryCancel();
      break;
    }
    version = news.version();
    // An incarnation that this engine is not registered at knows nothing of its leases. Once the engine is registered,
    // a new stream starts with a snapshot: nothing is missed.
    if (news.incarnation() != identity.incarnation) {
      context.TryCancel();
      version = -1;
      break;
    }
    if (snapshot) DeliverSnapshot(news.snapshot());
    if (news.event_case() == v1::WatchResponse::kLimit) options_.on_limit(news.limit());
    const bool is_lease = news.event_case() == v1::WatchResponse::kLease;
    if (is_lease && IsOurs(news.lease())) events_.OnLease(FromProto(news.lease()));
  }
  reader->Finish();
  SetWatchContext(nullptr);
  return version >= 0;
}

bool GrpcLeaseClient::IsOurs(const v1::Lease& lease) const {
  return lease.donor_instance() == options_.instance_id || lease.borrower_instance() == options_.instance_id;
}

void GrpcLeaseClient::DeliverSnapshot(const v1::WatchResponse::Snapshot& snapshot) {
  for (const v1::LeaseLimit& limit : snapshot.limits()) options_.on_limit(limit);
  std::vector<lease::Lease> ours;
  for (const v1::Lease& lease : snapshot.leases()) {
    if (IsOurs(lease)) ours.push_back(FromProto(lease));
  }
  events_.OnLeases(ours);
}

void GrpcLeaseClient::SetWatchContext(grpc::ClientContext* context) {
  TimedMutexLock lock(&mutex_);
  watch_ = context;
  if (context != nullptr && stopped_) context->TryCancel();
}

}  // namespace

std::unique_ptr<LeaseClient> LeaseClient::Create(const Options& options, coordinator::LeaseBrokerEvents& events) {
  return std::make_unique<GrpcLeaseClient>(options, events);
}

}  // namespace swiftcache::engine::rpc
