// SPDX-License-Identifier: Apache-2.0
// The response to one request: a handler fills it on any thread, and its bytes go to the connection that the request
// came from.
//
//   auto response = std::make_shared<Response>(connection, ResponseForm{.chunked = true, .keep_alive = true});
//   handler(std::move(request), response);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/http/http_server.h"

namespace swiftcache::http {

/// Takes the bytes of responses; the connection implements it. Thread-safety: safe; no call blocks or calls back.
class ResponseOutlet {
 public:
  virtual ~ResponseOutlet() = default;
  /// What the bytes are of their response.
  struct Part {
    int status = 0;                        // not 0: they begin it, with this status
    bool last = false;                     // they end it
    std::shared_ptr<void> held = nullptr;  // until they have been written
  };
  /// Queues bytes behind the earlier ones. False: the client has gone.
  virtual bool Queue(std::string bytes, Part part) = 0;
  /// Whether so many more bytes stay within the limits of what a client may leave unread.
  virtual bool HasRoom(int64_t bytes) = 0;
  /// Ends the connection as it stands.
  virtual void Cut() = 0;
  /// The same, because the client leaves too much unread.
  virtual void CutSlowReader() = 0;
};

/// The form of response that the request calls for.
struct ResponseForm {
  bool head_only = false;  // HEAD: everything but the body
  bool chunked = true;     // HTTP/1.0 has no chunks: the end of the connection ends the body
  bool keep_alive = true;
};

/// Thread-safety: safe. Ownership: shared with the handler; shares the outlet. Errors: see HttpResponder.
class Response final : public HttpResponder {
 public:
  Response(std::shared_ptr<ResponseOutlet> outlet, ResponseForm form) : outlet_(std::move(outlet)), form_(form) {}
  ~Response() override;  // if the handler sent nothing: a 500; if it did not finish: ends the connection

  void Send(int status, std::string content_type, std::string body, HttpHeaders headers,
            std::shared_ptr<void> held) override;
  void StartStream(int status, std::string content_type, HttpHeaders headers) override;
  bool Write(std::string chunk) override;
  void Finish() override;
  void OnDisconnect(std::function<void()> callback) override;

  /// Called by the connection when the client has gone. Runs the callback, if the response is not complete.
  void ClientGone();

 private:
  enum class Phase { kNew, kStreaming, kComplete };
  bool Advance(Phase from, Phase to) ABSL_LOCKS_EXCLUDED(mutex_);
  void Fail();

  const std::shared_ptr<ResponseOutlet> outlet_;
  const ResponseForm form_;
  absl::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kNew;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;  // the client has gone, or is being cut
  std::function<void()> on_disconnect_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace swiftcache::http
