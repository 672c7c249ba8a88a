// SPDX-License-Identifier: Apache-2.0
// One GenerateMany call: the generations of one client, and one message for what a step gives to all of them.
//
//   auto stream = std::make_shared<GenerateManyStream>(submitter, [](GenerateManyStream* ended) { ... });
//   stream->CutIfStalled(*context, submitter->limits().stall_timeout, stream);
//   stream->Start();
//   return stream.get();                // it lives until the call is over
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/counted_service.h"
#include "common/rpc/stream_writer.h"
#include "engine/exec/request.h"
#include "engine/rpc/submitter.h"
#include "swiftcache/v1/engine.pb.h"

namespace swiftcache::engine::rpc {

/// What sinks hear is put into the last message that waits, and goes out at the end of the step, or when the write
/// under way is done: so a slow reader costs no more memory than its tokens, and no more than max_unread_stream_bytes.
/// Thread-safety: safe. Three kinds of threads come here: gRPC's reading one (one command at a time), the one that
/// calls the sinks, and any of gRPC's for ends of writes, a client that is gone and deadlines. All state is guarded by
/// `mutex_`, and neither gRPC nor the engine is called under it. A generation stands in `generations_` from before
/// Submit until its sink hears OnDone, so whoever ends the stream finds all that the engine has. Who ends it, or whose
/// deadline passes, before the engine has accepted the generation cancels nothing; so Begin looks again after Submit. A
/// cancel names the request's number: the request may end meanwhile, and its id be another's.
/// Ownership: shared by the engine's sinks and by the call under way (`self_`, until OnDone), and by a deadline that passes just then, for which the server does not wait; so the submitter
/// is shared.
/// Errors: as in engine.proto.
class GenerateManyStream final
    : public StreamWriter<v1::GenerateManyResponse,
                          grpc::ServerBidiReactor<Counted<v1::GenerateManyRequest>, v1::GenerateManyResponse>>,
      public std::enable_shared_from_this<GenerateManyStream> {
 public:
  static constexpr int64_t kMaxUnreadEnds = 4096;  // as many calls as a connection may have: RpcServer::Options

  /// `on_end` is called when the call is over, before it is destroyed.
  GenerateManyStream(std::shared_ptr<const Submitter> submitter, std::function<void(GenerateManyStream*)> on_end)
      : submitter_(std::move(submitter)), on_end_(std::move(on_end)) {}

  /// Called once.
  void Start();
  /// Ends the call behind its last generation. The first `status` counts.
  void EndWhenIdle(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnReadDone(bool ok) override;
  void OnDone() override;

 private:
  struct Generation;
  class Sink;

  /// Of engine.proto's errors of the stream.
  absl::Status Do(const v1::GenerateManyRequest& command);
  absl::Status Begin(int64_t id, const v1::GenerateManyRequest::Begin& begin) ABSL_LOCKS_EXCLUDED(mutex_);
  void Refuse(int64_t id, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckBegin(int64_t id) ABSL_LOCKS_EXCLUDED(mutex_);
  void Submit(const std::shared_ptr<Generation>& generation, exec::Request request, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Cancel(int64_t id, std::optional<int32_t> index) ABSL_LOCKS_EXCLUDED(mutex_);
  void CancelInEngine(const Generation& generation, std::optional<int32_t> index = std::nullopt) const;
  void OnDeadline(const std::shared_ptr<Generation>& generation) ABSL_LOCKS_EXCLUDED(mutex_);

  // Called by sinks.
  void OnTokens(Generation& generation, const exec::TokenEvent& event) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnGenerationDone(Generation& generation, absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnReaderGone() override { End(absl::CancelledError("the client cancelled, or is gone")); }
  void OnNext(v1::GenerateManyResponse& message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Cancels what is left, and ends the call.
  void End(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The message that later output joins.
  v1::GenerateManyResponse& LastMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// `bytes` of memory were added to it.
  void Count(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { last_bytes_ += bytes, unread_bytes_ += bytes; }
  void AddEnd(int64_t id, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<const Submitter> submitter_;
  const std::function<void(GenerateManyStream*)> on_end_;
  std::shared_ptr<GenerateManyStream> self_;
  Counted<v1::GenerateManyRequest> command_;  // the reading thread's

  absl::flat_hash_map<int64_t, std::shared_ptr<Generation>> generations_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_when_idle_ ABSL_GUARDED_BY(mutex_);
  int64_t last_message_ ABSL_GUARDED_BY(mutex_) = 0;  // number of the last one in `pending_`
  int64_t last_bytes_ ABSL_GUARDED_BY(mutex_) = 0;    // of memory, in it
  int64_t unread_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // likewise, in `pending_`
  int64_t unread_ends_ ABSL_GUARDED_BY(mutex_) = 0;   // in `pending_`
};

}  // namespace swiftcache::engine::rpc
