// SPDX-License-Identifier: Apache-2.0
// An engine in memory: each call runs a script on a thread of its own, which may die at a given token or never answer.
//
//   FakeEngine engine;
//   engine.SetScript([](FakeCall& call) { call.Send({.token_ids = {104}}); call.End(absl::UnavailableError("died"));
//   }); auto client = engine.NewClient();
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gateway/fleet/engine_client.h"
#include "tests/fakes/byte_model_card.h"

namespace swiftcache::fakes {

/// One Generate call as a script sees it. Send, End and Answer belong to the script's thread.
class FakeCall {
 public:
  FakeCall(gateway::fleet::EngineRequest request, std::shared_ptr<gateway::fleet::EngineObserver> observer)
      : request_(std::move(request)), observer_(std::move(observer)) {}

  const gateway::fleet::EngineRequest& request() const { return request_; }

  void Send(gateway::fleet::EngineEvent event) { observer_->OnEvent(std::move(event)); }
  void SendText(const std::string& text, int32_t index = 0) {
    gateway::fleet::EngineEvent event;
    event.index = index;
    event.token_ids = Bytes(text);
    Send(std::move(event));
  }
  void SendFinish(gateway::fleet::FinishReason reason, int32_t index = 0, std::vector<int32_t> ids = {}) {
    gateway::fleet::EngineEvent event;
    event.index = index;
    event.token_ids = std::move(ids);
    event.finish = reason;
    event.usage.emplace();
    event.usage->prompt_tokens = static_cast<int64_t>(request_.token_ids.size());
    event.usage->cached_local_tokens = 3;
    Send(std::move(event));
  }
  void End(absl::Status status) { std::exchange(observer_, nullptr)->OnDone(std::move(status)); }
  bool ended() const { return observer_ == nullptr; }

  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
  }
  void WaitCancelled() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&cancelled_));
  }
  bool cancelled() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }
  void CancelIndex(int32_t index) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    cancelled_indices_.push_back(index);
  }
  /// Those that were cancelled alone, once there is one. Empty: not within 30 s.
  std::vector<int32_t> WaitCancelledIndices() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !cancelled_indices_.empty(); };
    mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(30));
    return cancelled_indices_;
  }

 private:
  const gateway::fleet::EngineRequest request_;
  std::shared_ptr<gateway::fleet::EngineObserver> observer_;
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<int32_t> cancelled_indices_ ABSL_GUARDED_BY(mutex_);
};

/// Answers "hello" and stops.
inline void SayHello(FakeCall& call) {
  for (const char c : std::string("hello")) call.SendText(std::string(1, c));
  call.SendFinish(gateway::fleet::FinishReason::kStop, 0, {kEos});
  call.End(absl::OkStatus());
}

/// Takes the request and stays silent until it is cancelled.
inline void NeverAnswer(FakeCall& call) { call.WaitCancelled(); }

/// Sends `tokens` letters, then is gone.
inline std::function<void(FakeCall&)> DieAfter(int tokens) {
  return [tokens](FakeCall& call) {
    for (int i = 0; i < tokens; ++i) call.SendText("x");
    call.End(absl::UnavailableError("Socket closed"));
  };
}

/// Thread-safety: safe. Ownership: joins its threads in the destructor; outlives its clients' calls.
class FakeEngine {
 public:
  using Script = std::function<void(FakeCall&)>;

  ~FakeEngine() {
    for (std::thread& thread : TakeThreads()) thread.join();
  }

  void SetScript(Script script) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    script_ = std::move(script);
  }
  std::function<void()> before_call;             // of each, whose script has not begun; set before the first
  std::function<void()> before_handle;           // of each call, whose script has begun; set before the first
  std::function<void(int fetch)> on_card_fetch;  // counted from 1; set before the first
  /// The next fetches fail with these, in order; then `card` comes.
  void SetCard(gateway::fleet::ModelCard card, std::deque<absl::Status> failures = {}) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    card_ = std::move(card);
    card_failures_ = std::move(failures);
  }
  /// Whether it answers when it is asked, or is silent.
  void SetAnswers(bool answers) { SetPing(answers ? absl::OkStatus() : absl::DeadlineExceededError("no answer")); }
  /// What comes of asking it: first `before`, in order.
  void SetPing(absl::Status then, std::deque<absl::Status> before = {}) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    ping_ = std::move(then);
    next_pings_ = std::move(before);
  }
  /// How often it was asked.
  int pings() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return pings_;
  }
  int card_fetches() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return card_fetches_;
  }
  int calls() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return calls_;
  }

  std::unique_ptr<gateway::fleet::EngineClient> NewClient() { return std::make_unique<Client>(*this); }

 private:
  class Handle final : public gateway::fleet::EngineCall {
   public:
    explicit Handle(std::shared_ptr<FakeCall> call) : call_(std::move(call)) {}
    void Cancel() override { call_->Cancel(); }
    void CancelIndex(int32_t index) override { call_->CancelIndex(index); }

   private:
    const std::shared_ptr<FakeCall> call_;
  };

  class Client final : public gateway::fleet::EngineClient {
   public:
    explicit Client(FakeEngine& engine) : engine_(engine) {}
    std::unique_ptr<gateway::fleet::EngineCall> Generate(
        const gateway::fleet::EngineRequest& request,
        std::shared_ptr<gateway::fleet::EngineObserver> observer) override {
      if (engine_.before_call) engine_.before_call();
      const auto call = engine_.Run(std::make_shared<FakeCall>(request, std::move(observer)));
      if (engine_.before_handle) engine_.before_handle();
      return std::make_unique<Handle>(call);
    }
    absl::StatusOr<gateway::fleet::ModelCard> FetchModelCard(absl::Duration timeout) override {
      return engine_.FetchModelCard();
    }
    absl::Status Ping(absl::Duration) override { return engine_.Ping(); }

   private:
    FakeEngine& engine_;
  };

  // A script that returns without an end has the call end as a cancelled one.
  std::shared_ptr<FakeCall> Run(std::shared_ptr<FakeCall> call) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    ++calls_;
    threads_.emplace_back([call, script = script_] {
      script(*call);
      if (!call->ended()) call->End(absl::CancelledError("cancelled"));
    });
    return call;
  }

  absl::StatusOr<gateway::fleet::ModelCard> FetchModelCard() ABSL_LOCKS_EXCLUDED(mutex_) {
    int fetch = 0;
    {
      absl::MutexLock lock(&mutex_);
      fetch = ++card_fetches_;
    }
    if (on_card_fetch) on_card_fetch(fetch);
    absl::MutexLock lock(&mutex_);
    if (card_failures_.empty()) return card_;
    absl::Status failure = card_failures_.front();
    card_failures_.pop_front();
    return failure;
  }

  absl::Status Ping() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    ++pings_;
    if (next_pings_.empty()) return ping_;
    absl::Status next = std::move(next_pings_.front());
    next_pings_.pop_front();
    return next;
  }

  std::vector<std::thread> TakeThreads() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return std::exchange(threads_, {});
  }

  mutable absl::Mutex mutex_;
  Script script_ ABSL_GUARDED_BY(mutex_) = SayHello;
  gateway::fleet::ModelCard card_ ABSL_GUARDED_BY(mutex_) = ByteModelCard(kChatMl);
  std::deque<absl::Status> card_failures_ ABSL_GUARDED_BY(mutex_);
  int card_fetches_ ABSL_GUARDED_BY(mutex_) = 0;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status ping_ ABSL_GUARDED_BY(mutex_);
  std::deque<absl::Status> next_pings_ ABSL_GUARDED_BY(mutex_);
  int pings_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace swiftcache::fakes
