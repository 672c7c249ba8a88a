// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/engine.h"

#include <pthread.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"
#include "common/log/log.h"
#include "common/sync/mailbox.h"
#include "common/sync/timed_mutex.h"
#include "engine/backend/kv_layout.h"
#include "engine/coordinator/loop_message.h"
#include "engine/exec/engine_metrics.h"
#include "engine/exec/live_request.h"
#include "engine/exec/outbound.h"
#include "engine/exec/request_check.h"
#include "engine/exec/step_loop.h"
#include "engine/exec/urgency.h"
#include "glog/logging.h"

namespace swiftcache::engine::exec {
namespace {

struct CancelMessage {
  std::string request_id;
  RequestNumber number;
  std::optional<int32_t> index;
};
struct FinishMessage {};  // end when nothing is left
struct StopMessage {};    // end now
using coordinator::LoopMessage;
using Message = std::variant<std::unique_ptr<LiveRequest>, CancelMessage, LoopMessage, FinishMessage, StopMessage>;

// The face of the loop: who is live, what the load is, and the mailbox through which the loop hears of everything.
class EngineImpl final : public Engine, private LoopObserver {
 public:
  EngineImpl(const EngineOptions& options, const backend::KvLayout& layout, const RequestLimits& limits,
             std::unique_ptr<models::Model> model, std::unique_ptr<backend::KvMemory> memory,
             const std::optional<SharingDependencies>& sharing, const Clock& clock, Metrics& metrics)
      : options_(options),
        limits_(limits),
        clock_(clock),
        metrics_(metrics, {.block_tokens = options.block_tokens,
                           .num_blocks = memory->bytes() / layout.block_bytes(),
                           .transport = sharing ? sharing->transport->kind() : "none"}),
        outbound_(&metrics_, [this](const LiveRequest& request) { BeforeDone(request); }),
        loop_(options, layout, std::move(model), std::move(memory), ForLoop(sharing), clock, &metrics_, this) {}
  ~EngineImpl() override { ShutDown(absl::InfinitePast()); }

  void Start() override {
    absl::MutexLock lock(&thread_mutex_);
    outbound_.Start();
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "step loop");
      if (options_.at_loop_start) options_.at_loop_start();
      Run();
    });
  }
  absl::Status Submit(Request request, std::unique_ptr<ResponseSink> sink) override;
  void CountRefusal(const absl::Status& why) override { metrics_.Refused(why); }
  void Cancel(const std::string& request_id, RequestNumber number, std::optional<int32_t> index) override {
    mailbox_.Push(CancelMessage{request_id, number, index});
  }
  void Post(LoopMessage message) override {
    urgency_.Note(message, clock_.Now());
    mailbox_.Push(std::move(message));
  }
  EngineLoad Load() const override {
    TimedMutexLock lock(&mutex_);
    EngineLoad load = LoadLocked();
    load.progress = loop_.progress();
    return load;
  }
  void UpdateMetrics() override {
    {
      TimedMutexLock lock(&mutex_);
      metrics_.SetLoad(LoadLocked());
    }
    loop_.UpdateMetrics();
  }
  int64_t max_model_len_tokens() const override { return limits_.max_model_len_tokens; }
  void Drain(absl::Time deadline) override;
  void ShutDown(absl::Time deadline) override;

 private:
  std::optional<LoopSharing> ForLoop(const std::optional<SharingDependencies>& parts) {
    if (!parts) return std::nullopt;
    return LoopSharing{.transport = parts->transport, .coordinator = parts->coordinator, .urgency = &urgency_};
  }
  void Run();
  void Handle(Message message);
  absl::Status Enqueue(Request request, const absl::Status& in_time, std::unique_ptr<ResponseSink> sink);
  absl::Status MayEnqueueLocked(const std::string& id, const absl::Status& in_time) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  EngineLoad LoadLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IdleLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return loop_ended_ || (live_ids_.empty() && not_told_ == 0);
  }

  void OnStarted(const LiveRequest& request) override;
  void OnEnded(const LiveRequest& request) override;
  void OnLoad(const EngineLoad& load) override;
  void Deliver(OutboundBatch batch) override { outbound_.Deliver(std::move(batch)); }
  void OnDeviceLost(const absl::Status& why) override;
  void BeforeDone(const LiveRequest& request);

  const EngineOptions options_;
  const RequestLimits limits_;
  const Clock& clock_;
  EngineMetrics metrics_;
  Mailbox<Message> mailbox_;  // requests are bounded by MayEnqueueLocked, words of leases by the leases
  Urgency urgency_;

  mutable TimedMutex mutex_;
  absl::flat_hash_set<std::string> live_ids_ ABSL_GUARDED_BY(mutex_);
  int64_t not_started_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t not_told_ ABSL_GUARDED_BY(mutex_) = 0;  // have ended, and their sinks have not heard of it
  EngineLoad load_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool loop_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool device_lost_ ABSL_GUARDED_BY(mutex_) = false;

  Outbound outbound_;

  // Of the loop's thread alone (constructed before it, destroyed after it).
  StepLoop loop_;
  bool ends_when_idle_ = false;
  bool ends_now_ = false;

  absl::Mutex thread_mutex_;  // before mutex_; held while ShutDown waits and joins
  std::thread thread_ ABSL_GUARDED_BY(thread_mutex_);
};

absl::Status EngineImpl::Submit(Request request, std::unique_ptr<ResponseSink> sink) {
  const absl::Status in_time = loop_.decode_bound().Check(request);
  const absl::Status status = Enqueue(std::move(request), in_time, std::move(sink));
  if (!status.ok()) status == in_time ? metrics_.RefusedAsTooSlow() : metrics_.Refused(status);
  return status;
}

// Enqueued under the lock, so that nothing can arrive behind the message that ends the loop.
absl::Status EngineImpl::Enqueue(Request request, const absl::Status& in_time, std::unique_ptr<ResponseSink> sink) {
  RETURN_IF_ERROR(CheckRequest(request, limits_));
  {
    TimedMutexLock lock(&mutex_);
    RETURN_IF_ERROR(MayEnqueueLocked(request.request_id, in_time));  // before what a long prompt costs
  }
  const int64_t max_total_tokens = MaxTotalTokens(request, limits_);
  auto live = std::make_unique<LiveRequest>(std::move(request), std::move(sink), clock_.Now(), max_total_tokens);
  TimedMutexLock lock(&mutex_);
  RETURN_IF_ERROR(MayEnqueueLocked(live->request.request_id, in_time));
  live_ids_.insert(live->request.request_id);
  mailbox_.Push(std::move(live));
  ++not_started_;
  return absl::OkStatus();
}

absl::Status EngineImpl::MayEnqueueLocked(const std::string& id, const absl::Status& in_time) const {
  if (draining_) return absl::UnavailableError("the engine is draining: send the request to another engine");
  if (device_lost_) return absl::UnavailableError("the engine's device is lost: send the request to another engine");
  if (!in_time.ok()) return in_time;  // a client's last answer: another engine might serve what a draining one refuses
  if (live_ids_.contains(id)) {
    return absl::AlreadyExistsError(absl::StrCat("request_id \"", id, "\" is that of a live request: use a new one"));
  }
  if (not_started_ >= options_.max_waiting_requests) {
    return absl::ResourceExhaustedError(absl::StrCat(not_started_, " requests wait already; at most ",
                                                     options_.max_waiting_requests, " may: try again later"));
  }
  if (not_told_ >= options_.max_num_seqs + options_.max_waiting_requests) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the answers to ", not_told_, " requests are still to be sent: try again later"));
  }
  return absl::OkStatus();
}

// Requests in the queue are live and wait, although the loop has not seen them yet; those that ended keep nothing but
// their id.
EngineLoad EngineImpl::LoadLocked() const {
  EngineLoad load = load_;
  const int64_t live = static_cast<int64_t>(live_ids_.size()) - not_told_;
  load.waiting_requests = std::max<int64_t>(0, live - load.running_requests);
  return load;
}

void EngineImpl::OnStarted(const LiveRequest& request) {
  TimedMutexLock lock(&mutex_);
  --not_started_;
}

void EngineImpl::OnEnded(const LiveRequest& request) {
  TimedMutexLock lock(&mutex_);
  ++not_told_;
  if (!request.start_time) --not_started_;
}

void EngineImpl::BeforeDone(const LiveRequest& request) {
  TimedMutexLock lock(&mutex_);
  --not_told_;
  live_ids_.erase(request.request.request_id);
}

void EngineImpl::OnLoad(const EngineLoad& load) {
  TimedMutexLock lock(&mutex_);
  load_ = load;
}

void EngineImpl::OnDeviceLost(const absl::Status& why) {
  {
    TimedMutexLock lock(&mutex_);
    if (std::exchange(device_lost_, true)) return;
  }
  LOG(ERROR) << "the device is lost: " << why.message();
  if (options_.on_device_lost) options_.on_device_lost(why);
}

void EngineImpl::Run() {
  absl::Time due = absl::InfinitePast();
  while (!ends_now_ && !(ends_when_idle_ && !loop_.has_work())) {
    const absl::Duration patience = std::max(absl::ZeroDuration(), due - clock_.Now());
    for (Message& message : mailbox_.TakeAll(patience)) Handle(std::move(message));
    if (!ends_now_) due = loop_.Turn();
  }
  loop_.EndAll();
  TimedMutexLock lock(&mutex_);
  loop_ended_ = true;
}

void EngineImpl::Handle(Message message) {
  if (auto* request = std::get_if<std::unique_ptr<LiveRequest>>(&message)) {
    loop_.Accept(std::move(*request));
  } else if (auto* cancel = std::get_if<CancelMessage>(&message)) {
    loop_.Cancel(cancel->request_id, cancel->number, cancel->index);
  } else if (auto* lease = std::get_if<LoopMessage>(&message)) {
    loop_.Handle(*lease);
  } else {
    ends_when_idle_ = true;
    ends_now_ = ends_now_ || std::holds_alternative<StopMessage>(message);
  }
}

void EngineImpl::Drain(absl::Time deadline) {
  TimedMutexLock lock(&mutex_);
  draining_ = true;
  mutex_.AwaitWithTimeout(absl::Condition(this, &EngineImpl::IdleLocked), deadline - clock_.Now());
}

// The loop is told under the lock: whoever is refused from here on comes after that. An engine that never started ends
// its requests on the caller's thread.
void EngineImpl::ShutDown(absl::Time deadline) {
  absl::MutexLock thread_lock(&thread_mutex_);
  {
    TimedMutexLock lock(&mutex_);
    draining_ = true;
    if (loop_ended_ && !thread_.joinable()) return;
    if (const absl::Duration patience = deadline - clock_.Now();
        thread_.joinable() && patience > absl::ZeroDuration()) {
      mailbox_.Push(FinishMessage{});
      mutex_.AwaitWithTimeout(absl::Condition(&loop_ended_), patience);
    }
    mailbox_.Push(StopMessage{});
  }
  if (thread_.joinable()) {
    thread_.join();
  } else {
    Run();
  }
  outbound_.Stop();
}

}  // namespace

std::unique_ptr<Engine> Engine::Create(const EngineOptions& options, EngineMemory memory,
                                       std::unique_ptr<models::Model> model,
                                       const std::optional<SharingDependencies>& sharing, const Clock& clock,
                                       Metrics& metrics) {
  CHECK_EQ(options.share, sharing.has_value());
  const RequestLimits limits{.vocab_size = model->geometry().vocab_size,
                             .max_model_len_tokens = memory.max_model_len_tokens};
  return std::make_unique<EngineImpl>(options, memory.layout, limits, std::move(model), std::move(memory.kv), sharing,
                                      clock, metrics);
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options, backend::Device& device,
                                                       std::unique_ptr<models::Model> model, const Clock& clock,
                                                       Metrics& metrics) {
  ASSIGN_OR_RETURN(EngineMemory memory, CreateEngineMemory(options, model->geometry(), device));
  return Create(options, std::move(memory), std::move(model), /*sharing=*/std::nullopt, clock, metrics);
}

}  // namespace swiftcache::engine::exec
