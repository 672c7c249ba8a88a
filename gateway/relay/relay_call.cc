// SPDX-License-Identifier: Apache-2.0
#include "gateway/relay/relay_call.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/log/log.h"
#include "gateway/relay/access_log.h"
#include "gateway/route/route.h"

namespace swiftcache::gateway::relay {

// Passes one engine's events to the call. Each attempt has its own, so that late events of an earlier engine are told
// apart.
class RelayCall::Attempt final : public fleet::EngineObserver, public fleet::LossObserver {
 public:
  Attempt(std::shared_ptr<RelayCall> call, int number) : call_(std::move(call)), weak_call_(call_), number_(number) {}
  void OnEvent(fleet::EngineEvent event) override { call_->OnEngineEvent(std::move(event)); }
  void OnDone(absl::Status status) override { std::exchange(call_, nullptr)->OnEngineDone(status); }
  void OnLost(const absl::Status& why) override {
    if (const std::shared_ptr<RelayCall> call = weak_call_.lock()) call->OnEngineLost(number_, why);
  }

 private:
  std::shared_ptr<RelayCall> call_;  // of the engine's events alone, until the last
  const std::weak_ptr<RelayCall> weak_call_;
  const int number_;
};

namespace {

fleet::EngineRequest ForEngine(const GenerateRequest& request, std::vector<int32_t> prompt) {
  return {.request_id = {},  // of each attempt
          .traceparent = request.traceparent,
          .token_ids = std::move(prompt),
          .sampling = request.sampling,
          .cache_salt = request.cache_salt,
          .priority = request.priority,
          .deadline = request.deadline};
}

route::Tokens TokensOf(const fleet::EngineRequest& request) {
  return {static_cast<int64_t>(request.token_ids.size()), request.sampling.max_tokens.value_or(0)};
}

absl::Status WithMessage(const absl::Status& status, const std::string& message) {
  return absl::Status(status.code(), message);
}

}  // namespace

RelayCall::RelayCall(Inputs inputs, const RelayEnv& env, std::function<void(RelayCall*)> on_end)
    : request_(std::move(inputs.request)),
      env_(env),
      on_end_(std::move(on_end)),
      engine_id_(std::move(inputs.engine_id)),
      engine_request_(ForEngine(request_, std::move(inputs.prompt))),
      model_(std::move(inputs.model)),
      text_(*model_.text),
      sink_(std::move(inputs.sink)) {
  const int32_t n = request_.sampling.n.value_or(1);
  const auto prompt_tokens = static_cast<int64_t>(engine_request_.token_ids.size());
  for (int32_t i = 0; i < n; ++i) continuations_.emplace_back(*text_, request_.sampling, prompt_tokens);
}

absl::Status RelayCall::Start() {
  env_.metrics.Started();
  const absl::StatusOr<std::shared_ptr<fleet::EngineLink>> engine = NextEngine();
  if (!engine.ok()) {
    Log(engine.status());
    env_.metrics.Refused(model_.name, RefusalOf(engine.status()));
    env_.metrics.Ended(model_.name, engine.status(), env_.clock.Now() - request_.arrived);
    return engine.status();
  }
  StartAttempt(*engine);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<fleet::EngineLink>> RelayCall::NextEngine() const {
  if (env_.clock.Now() >= request_.deadline) return absl::DeadlineExceededError("the deadline passed");
  if (attempts_ == route::kMaxAttempts) {
    return absl::UnavailableError(absl::StrCat("model ", model_.name, ": it failed at ", attempts_, " engines"));
  }
  ASSIGN_OR_RETURN(size_t chosen, route::PickEngine(model_, TokensOf(engine_request_), tried_, env_.first_engine));
  return model_.engines[chosen].link;
}

// Once the engine's Generate was called, the next attempt may already run on another thread: from there on only locals
// and guarded members are used.
void RelayCall::StartAttempt(const std::shared_ptr<fleet::EngineLink>& engine) {
  engine_name_ = engine->name();
  tried_.push_back(engine);
  const int number = ++attempts_;
  BeginAttempt(number);
  cut_off_ = false;
  engine_request_.request_id = absl::StrCat(engine_id_, ".", number);
  auto attempt = std::make_shared<Attempt>(shared_from_this(), number);
  in_flight_ = fleet::EngineLink::InFlight(engine, attempt);
  CountAttempt();
  StoreHandle(number, engine->client().Generate(engine_request_, std::move(attempt)));
}

void RelayCall::CountAttempt() {
  const auto prompt_tokens = static_cast<int64_t>(engine_request_.token_ids.size());
  if (attempts_ == 1) env_.metrics.Dispatched(model_.name, env_.clock.Now() - request_.arrived, prompt_tokens);
  env_.metrics.Sent(model_.name, engine_name_);
}

void RelayCall::BeginAttempt(int attempt) {
  absl::MutexLock lock(&mutex_);
  under_way_ = attempt;
  loss_ = absl::OkStatus();
}

void RelayCall::StoreHandle(int attempt, std::shared_ptr<fleet::EngineCall> handle) {
  bool cancel = false;
  std::vector<int32_t> indices;
  {
    absl::MutexLock lock(&mutex_);
    if (ended_ || attempt < handle_attempt_) return;
    handle_attempt_ = attempt;
    handle_ = handle;
    indices.swap(cancelled_early_);
    cancel = cancel_engine_ || (attempt == under_way_ && !loss_.ok());
  }
  for (const int32_t index : indices) handle->CancelIndex(index);
  if (cancel) handle->Cancel();
}

void RelayCall::CancelEngine() {
  std::shared_ptr<fleet::EngineCall> handle;
  {
    absl::MutexLock lock(&mutex_);
    cancel_engine_ = true;
    handle = handle_;
  }
  if (handle != nullptr) handle->Cancel();
}

void RelayCall::CancelIndex(int32_t index) {
  std::shared_ptr<fleet::EngineCall> handle;
  {
    absl::MutexLock lock(&mutex_);
    if (handle_attempt_ != under_way_) return cancelled_early_.push_back(index);
    handle = handle_;
  }
  handle->CancelIndex(index);
}

// The engine is lost: its call is cancelled, and the OnDone that follows ends the attempt with the loss. So an attempt
// always ends by its OnDone, whatever the engine still sends.
void RelayCall::OnEngineLost(int attempt, const absl::Status& why) {
  std::shared_ptr<fleet::EngineCall> handle;
  {
    absl::MutexLock lock(&mutex_);
    if (attempt != under_way_ || !loss_.ok()) return;
    loss_ = why;
    if (attempt == handle_attempt_) handle = handle_;
  }
  if (handle != nullptr) handle->Cancel();
}

// The status with which the attempt under way ended: the loss, if there was one, not that of the cancelled call.
absl::Status RelayCall::EndAttempt(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  under_way_ = 0;
  return loss_.ok() ? status : std::exchange(loss_, absl::OkStatus());
}

void RelayCall::Abort(absl::Status reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (ended_ || !abort_reason_.ok()) return;
    abort_reason_ = std::move(reason);
  }
  CancelEngine();
}

bool RelayCall::aborted() const {
  absl::MutexLock lock(&mutex_);
  return !abort_reason_.ok();
}

bool RelayCall::lost() const {
  absl::MutexLock lock(&mutex_);
  return !loss_.ok();
}

void RelayCall::OnEngineEvent(fleet::EngineEvent event) {
  if (event.index < 0 || event.index >= static_cast<int64_t>(continuations_.size())) {
    return Abort(absl::InternalError(
        absl::StrCat("engine ", engine_name_, " sent index ", event.index, ", wants 0..", continuations_.size() - 1)));
  }
  if (aborted() || lost()) return;
  TextContinuation& continuation = continuations_[event.index];
  if (event.finish == fleet::FinishReason::kCancelled && !continuation.ended()) {  // the engine cut it off
    cut_off_ = true;
    event.finish.reset();
  }
  const bool engine_ends = event.finish.has_value();
  if (engine_ends) ++ended_by_engine_;
  if (continuation.ended()) return;
  const int32_t index = event.index;
  const bool has_tokens = !event.token_ids.empty();
  if (has_tokens && time_to_first_token_ == absl::ZeroDuration()) {
    time_to_first_token_ = env_.clock.Now() - request_.arrived;
    env_.metrics.FirstToken(model_.name, time_to_first_token_);
  }
  GenerateEvent out = continuation.Take(std::move(event), time_to_first_token_);
  if (!has_tokens && !engine_ends) return;
  sent_ = true;
  text_bytes_ += static_cast<int64_t>(out.text.size());
  env_.metrics.Generated(model_.name, static_cast<int64_t>(out.token_ids.size()));
  sink_->OnEvent(std::move(out));
  if (!continuation.ended()) return;
  if (++continuations_ended_ < continuations_.size()) {
    if (!engine_ends) CancelIndex(index);
  } else if (ended_by_engine_ < continuations_.size()) {
    CancelEngine();
  }
}

void RelayCall::OnEngineDone(const absl::Status& status) {
  in_flight_.Release();
  absl::Status outcome = OutcomeOf(EndAttempt(status));
  tried_.back()->NoteEnd(outcome.ok() || status.ok() ? outcome : status, env_.clock.Now());
  if (!aborted() && !outcome.ok()) env_.metrics.Failed(model_.name, engine_name_, outcome);
  if (!aborted() && route::ShouldRetry(outcome, sent_)) {
    outcome = Retry(outcome);
    if (outcome.ok()) return;
  }
  End(outcome);
}

// The status of the request if it ends with this attempt.
absl::Status RelayCall::OutcomeOf(const absl::Status& status) {
  if (continuations_ended_ == continuations_.size()) return absl::OkStatus();
  {
    absl::MutexLock lock(&mutex_);
    if (!abort_reason_.ok()) return abort_reason_;
  }
  if (status.ok() && cut_off_) return LostError("it drained and stopped before the answer was complete");
  if (status.ok()) {
    return absl::InternalError(absl::StrCat("engine ", engine_name_, " closed the stream after ", relayed_tokens(),
                                            " tokens without a finish reason; send the request again"));
  }
  if (absl::IsDeadlineExceeded(status)) {
    return WithMessage(status, absl::StrCat("the deadline passed after ", relayed_tokens(), " tokens"));
  }
  if (!absl::IsUnavailable(status) && !absl::IsCancelled(status)) return status;
  // CANCELLED, but not by this call: the engine is shutting down and ends what is left.
  return LostError(status.message());
}

absl::Status RelayCall::LostError(absl::string_view why) const {
  if (!sent_) return absl::UnavailableError(absl::StrCat("engine ", engine_name_, ": ", why));
  return absl::UnavailableError(absl::StrCat("engine ", engine_name_, " was lost after ", relayed_tokens(),
                                             " tokens were sent (", why, "); send the request again"));
}

// Tries another engine of the model, from the present table if its token ids still mean the same. OK: an attempt is
// under way. If none is left, the client gets the error that says most: of a full engine when to come back, of one
// without memory how much it has (the first of these, which has most room), and only then of a lost one; once its deadline
// has passed: that.
absl::Status RelayCall::Retry(const absl::Status& cause) {
  if (std::optional<fleet::ModelView> now = env_.fleet.Find(model_.name)) {
    if (now->text.ok() && *now->text == text_) model_ = *std::move(now);
  }
  if (absl::IsResourceExhausted(cause)) full_ = cause;
  if (absl::IsOutOfRange(cause)) too_long_.Update(cause);
  const absl::StatusOr<std::shared_ptr<fleet::EngineLink>> engine = NextEngine();
  if (!engine.ok()) {
    if (absl::IsDeadlineExceeded(engine.status())) return engine.status();
    if (!full_.ok()) return full_;
    if (!too_long_.ok()) return too_long_;
    return absl::UnavailableError(absl::StrCat(engine.status().message(), "; last: ", cause.message()));
  }
  LOG(WARNING) << RequestTag{request_.request_id, request_.traceparent, model_.name}
               << "trying another engine: " << cause;
  env_.metrics.Retried(model_.name);
  StartAttempt(*engine);
  return absl::OkStatus();
}

void RelayCall::End(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    handle_.reset();
  }
  Log(status);
  env_.metrics.Ended(model_.name, status, env_.clock.Now() - request_.arrived);
  std::exchange(sink_, nullptr)->OnDone(status);
  on_end_(this);
}

void RelayCall::Log(const absl::Status& status) const {
  const bool began = time_to_first_token_ != absl::ZeroDuration();
  LogAccess({.request = request_,
             .model = model_.name,
             .status = status,
             .total = env_.clock.Now() - request_.arrived,
             .attempts = attempts_,
             .engine = engine_name_,
             .prompt_tokens = static_cast<int64_t>(engine_request_.token_ids.size()),
             .cached_tokens = continuations_.front().cached_tokens(),  // the others find what the first computed
             .completion_tokens = relayed_tokens(),
             .text_bytes = text_bytes_,
             .time_to_first_token = began ? std::optional(time_to_first_token_) : std::nullopt});
}

int64_t RelayCall::relayed_tokens() const {
  int64_t tokens = 0;
  for (const TextContinuation& continuation : continuations_) tokens += continuation.completion_tokens();
  return tokens;
}

}  // namespace swiftcache::gateway::relay
