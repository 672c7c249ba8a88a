// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/broker_client.h"

#include <algorithm>
#include <deque>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/log/log.h"
#include "common/rpc/channel.h"
#include "common/rpc/proto_duration.h"
#include "common/rpc/status.h"
#include "common/sync/timed_mutex.h"
#include "engine/coordinator/broker_calls.h"
#include "engine/rpc/lease_convert.h"
#include "engine/rpc/standstill.h"
#include "swiftcache/v1/broker.grpc.pb.h"

namespace swiftcache::engine::rpc {
namespace {

constexpr int kMaxSuffix = 999;
constexpr size_t kRememberedIncarnations = 8;
constexpr absl::Duration kExpiryMargin = absl::Milliseconds(50);  // beyond the moment at which a dead holder is gone
constexpr int kExpiries = 2;                                      // of a holder, that are waited for
constexpr absl::Duration kUnknownLifetime = absl::Seconds(2);     // of a holder, where the broker does not say

// What an engine may be called, in turn.
class Names {
 public:
  Names() = default;
  Names(std::string first, BrokerClient::NameChoice choice)
      : first_(std::move(first)), may_change_(choice == BrokerClient::NameChoice::kWithSuffix) {}
  std::optional<std::string> Next() {
    if (!may_change_ || suffix_ == kMaxSuffix) return std::nullopt;
    return absl::StrCat(first_, "-", ++suffix_);
  }

 private:
  std::string first_;
  bool may_change_ = false;
  int suffix_ = 1;
};

/// Without a broker every name is free, and nothing is reported.
class NoBroker final : public BrokerClient {
 public:
  LeaseClient::Identity identity() const override { return {}; }
  std::optional<absl::Duration> heartbeat_age() const override { return std::nullopt; }
  absl::StatusOr<std::string> Reserve(const EngineDescription& description, NameChoice choice) override {
    names_ = Names(description.name, choice);
    return description.name;
  }
  std::optional<std::string> TakeNextName() override { return names_.Next(); }
  void KeepLimit(const v1::LeaseLimit&) override {}
  void NoteIncarnation(const std::string&) override {}
  void Start() override {}
  void Ready(const std::string&, std::function<exec::EngineLoad()>, const SharingDescription&) override {}
  void Draining() override {}
  void Leave() override {}

 private:
  Names names_;
};

v1::EngineInfo InfoOf(const EngineDescription& description, const std::string& instance_id) {
  v1::EngineInfo info;
  info.set_name(description.name);
  info.set_instance_id(instance_id);
  info.set_model_name(description.model_name);
  v1::KvGeometry& kv = *info.mutable_kv();
  kv.set_num_layers(description.kv.num_layers);
  kv.set_num_kv_heads(description.kv.num_kv_heads);
  kv.set_head_dim(description.kv.head_dim);
  kv.set_kv_cache_dtype(backend::NameOf(description.kv.dtype));
  kv.set_block_tokens(description.kv.block_tokens);
  kv.set_block_bytes(description.kv.block_bytes());
  kv.set_num_blocks(description.num_blocks);
  info.set_max_model_len_tokens(description.max_model_len_tokens);
  info.set_model_card_hash(description.model_card_hash);
  info.set_state(v1::STARTING);
  return info;
}

coordinator::LeaseTerms TermsOf(const v1::RegisterResponse& response) {
  coordinator::LeaseTerms terms;
  if (response.has_lease_ttl()) terms.ttl = DurationFromProto(response.lease_ttl());
  if (response.has_scale_down_window()) terms.scale_down_window = DurationFromProto(response.scale_down_window());
  return terms;
}

class GrpcBrokerClient final : public BrokerClient {
 public:
  explicit GrpcBrokerClient(const Options& options)
      : options_(options),
        stub_(v1::BrokerService::NewStub(
            CreateRpcChannel(options.broker, {.max_reconnect_backoff = options.max_reconnect_backoff}))) {}
  ~GrpcBrokerClient() override { Leave(); }

  LeaseClient::Identity identity() const override ABSL_LOCKS_EXCLUDED(mutex_) {
    TimedMutexReadLock lock(&mutex_);
    return {info_.name(), incarnation_};
  }
  std::optional<absl::Duration> heartbeat_age() const override ABSL_LOCKS_EXCLUDED(mutex_) {
    TimedMutexReadLock lock(&mutex_);
    return clock_.Now() - heard_at_;
  }
  absl::StatusOr<std::string> Reserve(const EngineDescription& description, NameChoice choice) override;
  std::optional<std::string> TakeNextName() override ABSL_LOCKS_EXCLUDED(mutex_);
  void KeepLimit(const v1::LeaseLimit& limit) override ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteIncarnation(const std::string& incarnation) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Start() override;
  void Ready(const std::string& address, std::function<exec::EngineLoad()> load,
             const SharingDescription& sharing) override;
  void Draining() override;
  void Leave() override;

 private:
  absl::Status RegisterAfterExpiry(NameChoice choice);
  absl::Status Register() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Heartbeat() ABSL_LOCKS_EXCLUDED(mutex_);
  void TellWeights(const v1::HeartbeatResponse& response) ABSL_LOCKS_EXCLUDED(mutex_);
  void Deregister() ABSL_LOCKS_EXCLUDED(mutex_);
  void Run();
  absl::Status HeartbeatOrRegister() ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteHeard(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void LogIfNew(const absl::Status& status);
  /// True when stopped; returns early for `changed_`.
  bool WaitStopped(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  bool WakeLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || changed_; }
  bool NamedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || info_.state() != v1::STARTING; }

  const Options options_;
  const std::unique_ptr<v1::BrokerService::Stub> stub_;
  const RealClock clock_;

  mutable TimedMutex mutex_;
  absl::Time heard_at_ ABSL_GUARDED_BY(mutex_) = clock_.Now();  // when the broker last took what we said
  std::string incarnation_ ABSL_GUARDED_BY(mutex_);             // of the broker that this engine is registered at
  v1::EngineInfo info_ ABSL_GUARDED_BY(mutex_);
  Names names_ ABSL_GUARDED_BY(mutex_);
  std::function<std::vector<lease::Lease>()> given_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, v1::LeaseLimit> limits_ ABSL_GUARDED_BY(mutex_);  // by model name
  std::deque<std::string> incarnations_ ABSL_GUARDED_BY(mutex_);          // that answered, the last one first
  bool told_of_two_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void(const coordinator::LeaseTerms&)> on_registered_ ABSL_GUARDED_BY(mutex_);
  std::function<exec::EngineLoad()> load_ ABSL_GUARDED_BY(mutex_);
  std::function<std::map<std::string, lease::Account>()> accounts_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const std::map<std::string, int64_t>&)> weighted_ ABSL_GUARDED_BY(mutex_);
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;  // info_ is news to the broker
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;

  // Used by Reserve, then by the thread, then by Leave: never by two at once.
  bool registered_ = false, may_be_known_ = false;  // a call that was not answered may have been heard
  std::map<std::string, int64_t> weights_;          // of borrowers, as told last
  Standstill standstill_;
  absl::Duration interval_ = absl::Seconds(1);
  absl::StatusCode logged_ = absl::StatusCode::kUnknown;

  std::thread thread_;  // last: it uses everything above
};

absl::StatusOr<std::string> GrpcBrokerClient::Reserve(const EngineDescription& description, NameChoice choice) {
  {
    TimedMutexLock lock(&mutex_);
    info_ = InfoOf(description, options_.instance_id);
    names_ = Names(description.name, choice);
  }
  absl::Status status = RegisterAfterExpiry(choice);
  while (absl::IsAlreadyExists(status) && TakeNextName()) status = Register();
  if (!status.ok() && !coordinator::NobodyAnswers(status)) return status;
  TimedMutexLock lock(&mutex_);
  return info_.name();
}

// An instance that was killed holds its name until it expires at the broker, which puts that off by as long as it stood
// still itself; a live one sends heartbeats and keeps it.
absl::Status GrpcBrokerClient::RegisterAfterExpiry(NameChoice choice) {
  absl::Status status = Register();
  for (int i = 0; i < kExpiries && absl::IsAlreadyExists(status) && choice == NameChoice::kExactly; ++i) {
    if (WaitStopped(RetryDelayOf(status).value_or(kUnknownLifetime) + kExpiryMargin)) return status;
    status = Register();
  }
  return status;
}

std::optional<std::string> GrpcBrokerClient::TakeNextName() {
  TimedMutexLock lock(&mutex_);
  std::optional<std::string> next = names_.Next();
  if (next) info_.set_name(*next);
  changed_ = changed_ || next;
  return next;
}

absl::Status GrpcBrokerClient::Register() {
  v1::RegisterRequest request;
  std::function<std::vector<lease::Lease>()> given;
  std::function<void(const coordinator::LeaseTerms&)> registered;
  {
    TimedMutexLock lock(&mutex_);
    info_.set_registration(info_.registration() + 1);
    *request.mutable_engine() = info_;
    request.set_token(options_.token);
    given = given_;
    for (const auto& [model_name, limit] : limits_) *request.add_limits() = limit;
    registered = on_registered_;
    changed_ = false;
  }
  if (given) {
    for (const lease::Lease& lease : given()) {
      v1::Lease& added = *request.add_leases();
      added = ToProto(lease);
      added.set_donor(request.engine().name());  // which may be another than when it was made
    }
  }
  grpc::ClientContext context;
  SetTimeout(context, options_.rpc_timeout);
  context.set_wait_for_ready(true);
  v1::RegisterResponse response;
  const absl::Status status = FromGrpc(stub_->Register(&context, request, &response));
  registered_ = status.ok();
  may_be_known_ = may_be_known_ || status.ok() || coordinator::NobodyAnswers(status);
  {
    TimedMutexLock lock(&mutex_);
    incarnation_ = response.incarnation();  // "" where it failed
  }
  if (!status.ok()) return status;
  NoteIncarnation(response.incarnation());
  if (registered) registered(TermsOf(response));
  const absl::Duration interval = DurationFromProto(response.heartbeat_interval());
  if (interval > absl::ZeroDuration()) interval_ = interval;
  return status;
}

absl::Status GrpcBrokerClient::Heartbeat() {
  v1::HeartbeatRequest request;
  std::function<exec::EngineLoad()> read_load;
  std::function<std::map<std::string, lease::Account>()> accounts;
  {
    TimedMutexLock lock(&mutex_);
    request.set_name(info_.name());
    request.set_incarnation(incarnation_);
    read_load = load_;
    accounts = accounts_;
  }
  request.set_instance_id(options_.instance_id);
  request.set_token(options_.token);
  const exec::EngineLoad load = read_load ? read_load() : exec::EngineLoad();
  request.mutable_load()->set_running_requests(load.running_requests);
  request.mutable_load()->set_waiting_requests(load.waiting_requests);
  request.mutable_load()->set_kv_blocks_used(load.kv_blocks_used);
  request.mutable_load()->set_kv_blocks_cached(load.kv_blocks_cached);
  request.mutable_load()->set_progress(load.progress);
  const absl::Duration max_gap = interval_ + 2 * options_.rpc_timeout;  // between two heartbeats, and room for delays
  request.mutable_load()->set_still_micros(absl::ToInt64Microseconds(standstill_.Note(load, clock_.Now(), max_gap)));
  request.mutable_load()->set_prompt_tokens_computed(load.prompt_tokens_computed);
  request.mutable_load()->set_prompt_tokens_local(load.prompt_tokens_local);
  request.mutable_load()->set_prompt_tokens_donor(load.prompt_tokens_donor);
  request.mutable_load()->set_reclaims(load.reclaims);
  request.mutable_load()->set_last_reclaim_micros(absl::ToInt64Microseconds(load.last_reclaim));
  request.mutable_load()->set_saved_tokens(load.sharing.saved_tokens);
  request.mutable_load()->set_again_for_loans_tokens(load.sharing.again_for_loans_tokens);
  request.mutable_load()->set_again_for_losses_tokens(load.sharing.again_for_losses_tokens);
  if (accounts) {
    for (const auto& [model, account] : accounts()) *request.mutable_load()->add_accounts() = ToProto(model, account);
  }
  grpc::ClientContext context;
  SetTimeout(context, options_.rpc_timeout);
  context.set_wait_for_ready(true);  // leaves the moment the broker is back
  v1::HeartbeatResponse response;
  const absl::Status status = FromGrpc(stub_->Heartbeat(&context, request, &response));
  if (!status.ok()) return status;
  NoteIncarnation(response.incarnation());
  TellWeights(response);
  return status;
}

void GrpcBrokerClient::TellWeights(const v1::HeartbeatResponse& response) {
  std::function<void(const std::map<std::string, int64_t>&)> weighted;
  {
    TimedMutexLock lock(&mutex_);
    weighted = weighted_;
  }
  std::map<std::string, int64_t> weights;
  for (const auto& borrower : response.weights()) weights[borrower.instance_id()] = borrower.weight();
  if (weighted && weights != weights_) weighted(weights_ = std::move(weights));
}

void GrpcBrokerClient::KeepLimit(const v1::LeaseLimit& limit) {
  TimedMutexLock lock(&mutex_);
  v1::LeaseLimit& kept = limits_[limit.model_name()];
  if (kept.set_at_micros() <= limit.set_at_micros()) kept = limit;
}

// An incarnation that another has followed is over, unless both are there.
void GrpcBrokerClient::NoteIncarnation(const std::string& incarnation) {
  TimedMutexLock lock(&mutex_);
  if (!incarnations_.empty() && incarnations_.front() == incarnation) return;
  const auto before = std::find(incarnations_.begin(), incarnations_.end(), incarnation);
  if (before != incarnations_.end() && !std::exchange(told_of_two_, true)) {
    LOG(ERROR) << "two brokers answer at " << options_.broker << " (incarnations " << incarnation << " and "
               << incarnations_.front() << "): each knows half of the engines, and leases and limits cannot hold; stop "
               << "one of them";
  }
  if (before != incarnations_.end()) incarnations_.erase(before);
  incarnations_.push_front(incarnation);
  if (incarnations_.size() > kRememberedIncarnations) incarnations_.pop_back();
}

void GrpcBrokerClient::Deregister() {
  v1::DeregisterRequest request;
  {
    TimedMutexLock lock(&mutex_);
    request.set_name(info_.name());
  }
  request.set_instance_id(options_.instance_id);
  request.set_token(options_.token);
  grpc::ClientContext context;
  SetTimeout(context, options_.rpc_timeout);
  v1::DeregisterResponse response;
  const absl::Status status = FromGrpc(stub_->Deregister(&context, request, &response));
  if (!status.ok()) LOG(INFO) << "the broker was not told of the leave: " << status.message();
}

void GrpcBrokerClient::Start() {
  thread_ = std::thread([this] { Run(); });
}

void GrpcBrokerClient::Run() {
  // Nobody answered Reserve: until the engine is ready it may find that another of this machine has its name, and would
  // have taken that from the other at a broker which comes meanwhile.
  if (!registered_) {
    TimedMutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &GrpcBrokerClient::NamedLocked));
  }
  // After a call that ran into its deadline the next one starts at once, without another interval, so that it reaches a
  // broker as soon as that is back.
  absl::Duration wait = registered_ ? interval_ : absl::ZeroDuration();
  while (!WaitStopped(wait)) {
    const absl::Status status = HeartbeatOrRegister();
    NoteHeard(status);
    LogIfNew(status);
    wait = absl::IsDeadlineExceeded(status) ? absl::ZeroDuration() : interval_;
  }
}

absl::Status GrpcBrokerClient::HeartbeatOrRegister() {
  bool changed = false;
  {
    TimedMutexLock lock(&mutex_);
    changed = changed_;
  }
  if (registered_ && !changed) {
    const absl::Status status = Heartbeat();
    if (!absl::IsNotFound(status)) return status;
    LOG(INFO) << "the broker does not know this engine (any more): registering again";
  }
  const absl::Status status = Register();
  if (absl::IsAlreadyExists(status)) TakeNextName();
  return status.ok() ? Heartbeat() : status;  // at once: what the broker knows of this engine now has no load
}

void GrpcBrokerClient::NoteHeard(const absl::Status& status) {
  if (!status.ok()) return;
  TimedMutexLock lock(&mutex_);
  heard_at_ = clock_.Now();
}

void GrpcBrokerClient::LogIfNew(const absl::Status& status) {
  const absl::StatusCode code = coordinator::NobodyAnswers(status) ? absl::StatusCode::kUnavailable : status.code();
  if (std::exchange(logged_, code) == code) return;
  if (status.ok()) {
    LOG(INFO) << "registered at the broker " << options_.broker;
  } else if (coordinator::NobodyAnswers(status)) {
    LOG(WARNING) << "the broker " << options_.broker << " does not answer; serving goes on: " << status.message()
                 << "; start it, or mend --broker";
  } else {
    LOG(ERROR) << "the broker " << options_.broker << " refuses this engine, trying again: " << status.message();
  }
}

bool GrpcBrokerClient::WaitStopped(absl::Duration timeout) {
  TimedMutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(this, &GrpcBrokerClient::WakeLocked), timeout);
  return stopped_;
}

void GrpcBrokerClient::Ready(const std::string& address, std::function<exec::EngineLoad()> load,
                             const SharingDescription& sharing) {
  TimedMutexLock lock(&mutex_);
  info_.set_lease_channel(sharing.lease_channel);
  info_.set_node_id(sharing.node_id);
  info_.set_page_bytes(sharing.page_bytes);
  info_.set_never_lent_blocks(sharing.never_lent_blocks);
  info_.set_borrows(sharing.borrows);
  given_ = sharing.given;
  accounts_ = sharing.accounts;
  on_registered_ = sharing.registered;
  weighted_ = sharing.weighted;
  info_.set_state(v1::READY);
  info_.set_address(address);
  load_ = std::move(load);
  changed_ = true;
}

void GrpcBrokerClient::Draining() {
  TimedMutexLock lock(&mutex_);
  if (info_.state() != v1::READY) return;
  info_.set_state(v1::DRAINING);
  changed_ = true;
}

void GrpcBrokerClient::Leave() {
  {
    TimedMutexLock lock(&mutex_);
    if (std::exchange(stopped_, true)) return;
  }
  if (thread_.joinable()) thread_.join();
  if (may_be_known_) Deregister();
}

}  // namespace

std::unique_ptr<BrokerClient> BrokerClient::Create(const Options& options) {
  if (options.broker.empty()) return std::make_unique<NoBroker>();
  return std::make_unique<GrpcBrokerClient>(options);
}

}  // namespace swiftcache::engine::rpc
