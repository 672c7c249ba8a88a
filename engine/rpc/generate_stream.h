// SPDX-License-Identifier: Apache-2.0
// One Generate call: between the thread that serves all sinks, which must never wait, and a reader who may be slow.
//
//   auto stream = std::make_shared<GenerateStream>(engine, tag);
//   stream->Start(std::move(request));
//   return stream.get();                // it lives until the call is over
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/log/log.h"
#include "common/rpc/stream_writer.h"
#include "engine/exec/engine.h"
#include "swiftcache/v1/engine.pb.h"

namespace swiftcache::engine::rpc {

/// One line for a request that the engine did not take; what it took, it logs itself.
void LogRefusal(const RequestTag& tag, const absl::Status& status);

/// Events of an index that the reader has not taken yet are put together into one message, so a slow reader costs no
/// more than its tokens. Thread-safety: safe: the thread of the sinks and gRPC threads meet here. Ownership: shared by the engine's
/// sink and by the call under way (`self_`, until OnDone); borrows the engine. Errors: what Submit refuses and what the
/// sink is told ends the call; RESOURCE_EXHAUSTED carries RetryInfo. A client that cancels or goes away cancels the
/// request at once.
class GenerateStream final : public StreamWriter<v1::EngineGenerateResponse>,
                             public std::enable_shared_from_this<GenerateStream> {
 public:
  explicit GenerateStream(exec::Engine& engine) : engine_(engine) {}

  /// Submits the request. Called once.
  void Start(exec::Request request);

  // Called by the sink.
  void OnTokens(const exec::TokenEvent& event) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnDone() override;

 private:
  void OnReaderGone() override ABSL_LOCKS_EXCLUDED(mutex_);

  exec::Engine& engine_;
  std::string request_id_, traceparent_;  // set by Start, then constant
  std::shared_ptr<GenerateStream> self_;
  bool submitted_ ABSL_GUARDED_BY(mutex_) = false;  // the engine has it, and has not ended it
};

}  // namespace swiftcache::engine::rpc
