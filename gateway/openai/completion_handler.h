// SPDX-License-Identifier: Apache-2.0
// Serves one completion request: starts a relay call for each prompt, and combines their events into one HTTP response.
//
//   auto handler = std::make_shared<CompletionHandler>(options, request_id, created_s, responder, budget);
//   handler->Run(relay, std::move(prompts));
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/byte_budget.h"
#include "common/http/http_server.h"
#include "gateway/openai/request.h"
#include "gateway/openai/response.h"
#include "gateway/relay/relay.h"

namespace swiftcache::gateway::openai {

/// Nothing is sent before the first event, so that an error up to then gets an HTTP status of its own; a later error
/// ends the stream as an event. The first error, or the client's disconnect, cancels every call. Thread-safety: safe.
/// Ownership: kept alive by its calls' sinks, which may outlive the door: so the budget is shared. Errors: go to the
/// client; RESOURCE_EXHAUSTED: the budget has no room for what is to be echoed, or for an answer that is not streamed. It
/// has it back when the answer has been written.
class CompletionHandler : public std::enable_shared_from_this<CompletionHandler> {
 public:
  CompletionHandler(ResponseOptions options, const std::string& request_id, int64_t created_s,
                    std::shared_ptr<HttpResponder> responder, std::shared_ptr<ByteBudget> budget);

  /// Called once.
  void Run(relay::Relay& relay, std::vector<relay::GenerateRequest> prompts);

 private:
  class Sink;
  using Calls = std::vector<std::shared_ptr<relay::GenerateCall>>;
  using Output =
      std::function<bool(HttpResponder&)>;  // false: the client has gone, or was disconnected since it does not read
  using CallUpdate = std::variant<relay::GenerateEvent, absl::Status>;
  enum class Phase { kStarting, kRunning, kOver };
  struct Prompt {
    int64_t tokens = 0;
    UsageTotals cached;  // of its first continuation: the others find what that one computed
    std::string echo;    // the prompt's text, if the client wants it before the completions
  };
  struct Progress {
    bool opened = false;
    Choice choice;  // of a stream: what is not in the outbox yet
  };

  bool Start(relay::Relay& relay, relay::GenerateRequest request, size_t prompt) ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<absl::Status> WhyOver() ABSL_LOCKS_EXCLUDED(mutex_);
  bool Adopt(const std::shared_ptr<relay::GenerateCall>& call, size_t prompt) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Echo(absl::StatusOr<std::string> text, size_t prompt) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status KeepEcho(std::string text, size_t prompt) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnUpdate(size_t prompt, CallUpdate update) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnClientGone() ABSL_LOCKS_EXCLUDED(mutex_);
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void Ready() ABSL_LOCKS_EXCLUDED(mutex_);

  // Sends what is in the outbox, without the lock; one thread at a time, which keeps the order. Then cancels the calls,
  // if the response is over.
  void Deliver() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Output> TakeOutputs() ABSL_LOCKS_EXCLUDED(mutex_);
  void Delivered(bool client_is_there) ABSL_LOCKS_EXCLUDED(mutex_);
  void CancelIfOver() ABSL_LOCKS_EXCLUDED(mutex_);

  // These put what is to be sent into the outbox.
  void Handle(size_t prompt, CallUpdate update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void HandleEvent(size_t prompt, const relay::GenerateEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void HandleDone(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Count(size_t prompt, const relay::GenerateEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Open(size_t prompt, size_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Append(const relay::GenerateEvent& event, Choice& choice) const;
  // `out`: what comes before it.
  void Stream(size_t place, std::string out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWith(const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  UsageTotals Usage() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<UsageTotals> UsageOnChunk() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutBegin(HttpHeaders more) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `held`: until the body has been written.
  void PutSend(int status, std::string body, HttpHeaders more, std::shared_ptr<void> held = nullptr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutWrite(std::string bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  HttpHeaders Headers(HttpHeaders more = {}) const;

  const ResponseOptions options_;
  const std::string request_id_;
  const ResponseWriter writer_;
  const std::shared_ptr<HttpResponder> responder_;

  const std::shared_ptr<ByteBudget> budget_;

  absl::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kStarting;
  absl::Status why_over_ ABSL_GUARDED_BY(mutex_) = relay::ClientGone();
  std::vector<std::pair<size_t, CallUpdate>> early_
      ABSL_GUARDED_BY(mutex_);  // what came while calls were being started
  Calls calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<Output> outbox_ ABSL_GUARDED_BY(mutex_);
  bool delivering_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Prompt> prompts_ ABSL_GUARDED_BY(mutex_);
  std::vector<Progress> answers_ ABSL_GUARDED_BY(mutex_);
  size_t prompts_left_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t echo_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of all answers
  ByteShare held_ ABSL_GUARDED_BY(mutex_);          // of the budget
  int64_t completion_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;  // the status line of a stream is in the outbox, or sent
};

}  // namespace swiftcache::gateway::openai
