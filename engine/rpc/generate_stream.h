// SPDX-License-Identifier: Apache-2.0
// One Generate call: a queue between the thread that calls all sinks, which must never wait, and a reader that may be
// slow.
//
//   auto stream = std::make_shared<GenerateStream>(submitter);
//   stream->CutIfStalled(*context, submitter.limits().stall_timeout, stream);
//   stream->Start(std::move(request));
//   return stream.get();                // it lives until the call is over
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/rpc/stream_writer.h"
#include "engine/exec/request.h"
#include "engine/rpc/submitter.h"
#include "swiftcache/v1/engine.pb.h"

namespace swiftcache::engine::rpc {

/// Events of one index that wait for the reader are combined into one message, so a slow reader costs no more memory
/// than its tokens, and no more than max_unread_bytes. Thread-safety: safe: called by the sinks' thread and by gRPC's
/// threads. Ownership: shared by the engine's sink and by the call under way (`self_`, until OnDone); borrows the
/// submitter. Errors: an error of Submit or of the sink ends the call. A client that cancels or disconnects cancels the
/// request at once, and so does one that leaves more than that unread: RESOURCE_EXHAUSTED, or reads nothing for
/// stall_timeout.
class GenerateStream final : public StreamWriter<v1::EngineGenerateResponse>,
                             public std::enable_shared_from_this<GenerateStream> {
 public:
  explicit GenerateStream(const Submitter& submitter) : submitter_(submitter) {}

  /// Submits the request. Called once.
  void Start(exec::Request request);

  // Called by the sink.
  void OnTokens(const exec::TokenEvent& event) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnDone() override;

 private:
  void OnReaderGone() override { GiveUp(absl::CancelledError("the client cancelled, or is gone")); }
  void OnNext(v1::EngineGenerateResponse& response) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Drops what is unread and cancels the request.
  void GiveUp(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);

  const Submitter& submitter_;
  std::string request_id_;      // set by Start, then constant,
  exec::RequestNumber number_;  // likewise
  std::shared_ptr<GenerateStream> self_;
  bool submitted_ ABSL_GUARDED_BY(mutex_) = false;    // the engine has it, and has not ended it
  int64_t unread_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of memory, in `pending_`
};

}  // namespace swiftcache::engine::rpc
