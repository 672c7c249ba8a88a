// SPDX-License-Identifier: Apache-2.0
// The answer to one request, on its way from a handler (any thread) to the connection that the request came from.
//
//   auto answer = std::make_shared<Answer>(connection, AnswerForm{.chunked = true, .keep_alive = true});
//   handler(std::move(request), answer);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/http/http_server.h"

namespace swiftcache::http {

/// Where bytes leave. Thread-safety: safe; no call blocks or calls back.
class AnswerOutlet {
 public:
  virtual ~AnswerOutlet() = default;
  /// Queues bytes behind the earlier ones; `last` ends the answer. False: the client has gone.
  virtual bool Queue(std::string bytes, bool last) = 0;
  /// Whether so many more bytes stay within the limit of what a client may leave unread.
  virtual bool HasRoom(int64_t bytes) const = 0;
  /// Ends the connection as it stands.
  virtual void Cut() = 0;
};

/// How the request wants to be answered.
struct AnswerForm {
  bool head_only = false;  // HEAD: everything but the body
  bool chunked = true;     // HTTP/1.0 has no chunks: the end of the connection ends the body
  bool keep_alive = true;
};

/// Thread-safety: safe. Ownership: shared with the handler; shares the outlet. Errors: see HttpResponder.
class Answer final : public HttpResponder {
 public:
  Answer(std::shared_ptr<AnswerOutlet> outlet, AnswerForm form) : outlet_(std::move(outlet)), form_(form) {}
  ~Answer() override;  // an answer that nobody gave: 500, or a cut where it had begun

  void Send(int status, std::string content_type, std::string body, HttpHeaders headers) override;
  void StartStream(int status, std::string content_type, HttpHeaders headers) override;
  bool Write(std::string chunk) override;
  void Finish() override;
  void OnDisconnect(std::function<void()> callback) override;

  /// From the connection: the client has gone. Runs the callback, if the answer is not complete.
  void ClientGone();

 private:
  enum class Phase { kNew, kStreaming, kComplete };
  bool Advance(Phase from, Phase to) ABSL_LOCKS_EXCLUDED(mutex_);
  void Fail();

  const std::shared_ptr<AnswerOutlet> outlet_;
  const AnswerForm form_;
  absl::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kNew;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> on_disconnect_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace swiftcache::http
