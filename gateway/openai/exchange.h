// SPDX-License-Identifier: Apache-2.0
// One HTTP request on its way through the relay: starts a call for each prompt, puts their events together into one
// answer.
//
//   auto exchange = std::make_shared<Exchange>(options, request_id, created_s, responder);
//   exchange->Run(relay, std::move(prompts));
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
#include "common/http/http_server.h"
#include "gateway/openai/request.h"
#include "gateway/openai/response.h"
#include "gateway/relay/relay.h"

namespace swiftcache::gateway::openai {

/// Nothing leaves before the first event, so that an error up to then has its own HTTP status; later ones end the
/// stream as an event. The first error, or the client's going, cancels every call. Thread-safety: safe. Ownership: kept
/// alive by its calls' sinks. Errors: go to the client.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(AnswerOptions options, const std::string& request_id, int64_t created_s,
           std::shared_ptr<HttpResponder> responder);

  /// Called once.
  void Run(relay::Relay& relay, std::vector<relay::GenerateRequest> prompts);

 private:
  class Sink;
  using Calls = std::vector<std::shared_ptr<relay::GenerateCall>>;
  using Output = std::function<bool(HttpResponder&)>;  // false: the client has gone, or is cut as it does not read
  using News = std::variant<relay::GenerateEvent, absl::Status>;
  enum class Phase { kStarting, kRunning, kOver };
  struct Prompt {
    int64_t tokens = 0;
    UsageTotals cached;  // of the continuation that reused most
    std::string echo;    // goes before the answers, where the client wants the prompt back
  };
  struct Progress {
    bool opened = false;
    int64_t offset_characters = 0;
    Choice choice;  // whole answers only
  };

  bool Start(relay::Relay& relay, relay::GenerateRequest request, size_t prompt) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Adopt(const std::shared_ptr<relay::GenerateCall>& call, size_t prompt) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Echo(absl::StatusOr<std::string> text, size_t prompt) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnNews(size_t prompt, News news) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnClientGone() ABSL_LOCKS_EXCLUDED(mutex_);
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void Ready() ABSL_LOCKS_EXCLUDED(mutex_);

  // Sends what stands in the outbox, without the lock; one thread at a time, which keeps it in order. Then cancels the
  // calls, if the answer is over.
  void Deliver() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Output> TakeOutputs() ABSL_LOCKS_EXCLUDED(mutex_);
  void Delivered(bool client_is_there) ABSL_LOCKS_EXCLUDED(mutex_);
  void CancelIfOver() ABSL_LOCKS_EXCLUDED(mutex_);

  // What leaves is put into the outbox.
  void Handle(size_t prompt, News news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void HandleEvent(size_t prompt, relay::GenerateEvent event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void HandleDone(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Count(size_t prompt, const relay::GenerateEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Stream(size_t prompt, int32_t index, Choice news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Append(size_t prompt, int32_t index, Choice news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Open(std::string& out, size_t prompt, int32_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWith(const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  UsageTotals Usage() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutBegin(HttpHeaders more) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutSend(int status, std::string body, HttpHeaders more) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutWrite(std::string bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  HttpHeaders Headers(HttpHeaders more = {}) const;

  const AnswerOptions options_;
  const std::string request_id_;
  const ResponseWriter writer_;
  const std::shared_ptr<HttpResponder> responder_;

  absl::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kStarting;
  std::vector<std::pair<size_t, News>> early_ ABSL_GUARDED_BY(mutex_);  // what came while calls were being started
  Calls calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<Output> outbox_ ABSL_GUARDED_BY(mutex_);
  bool delivering_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Prompt> prompts_ ABSL_GUARDED_BY(mutex_);
  std::vector<Progress> answers_ ABSL_GUARDED_BY(mutex_);
  size_t prompts_left_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t completion_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;  // the status line of a stream is in the outbox, or sent
};

}  // namespace swiftcache::gateway::openai
