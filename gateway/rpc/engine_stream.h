// SPDX-License-Identifier: Apache-2.0
// One GenerateMany stream to an engine, which carries all requests of a client until it breaks.
//
//   auto stream = std::make_shared<EngineStream>(*stub, "smollm2-chat", card_hash);
//   std::unique_ptr<fleet::EngineCall> call = stream->Begin(request, observer);  // null: the stream is over
//   stream->Start();
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "gateway/fleet/engine_client.h"
#include "swiftcache/v1/engine.grpc.pb.h"

namespace swiftcache::gateway::rpc {

/// Thread-safety: safe. gRPC reads on one thread at a time, and the events of all calls are told there. A call stands
/// in `calls_` until its end: who takes it out, be it the reader of its `end`, Cancel, its deadline, or the end of the
/// stream, is the only one to end it. So OnDone needs no answer of the engine; it is told on a thread of gRPC's, never
/// from within Cancel. No lock is held while observers or gRPC are called. A hold keeps gRPC's OnDone, after which
/// nothing may be written, from coming before the last write: it is removed once the reader has met the end and no
/// write is under way.
/// Ownership: of itself until OnDone; calls refer to it weakly. Errors: what ends the stream ends its calls with
/// UNAVAILABLE.
class EngineStream final : public grpc::ClientBidiReactor<v1::GenerateManyRequest, v1::GenerateManyResponse>,
                           public std::enable_shared_from_this<EngineStream> {
 public:
  /// The model that all requests are for, which the engine checks.
  EngineStream(v1::EngineService::Stub& stub, std::string model_name, std::string card_hash);

  /// Called once; calls may be begun before.
  void Start();
  /// Null: the stream is over, and the observer hears nothing.
  std::unique_ptr<fleet::EngineCall> Begin(const fleet::EngineRequest& request,
                                           std::shared_ptr<fleet::EngineObserver> observer) ABSL_LOCKS_EXCLUDED(mutex_);
  /// No more calls are begun: ends the stream with its last one.
  void CloseWhenIdle() ABSL_LOCKS_EXCLUDED(mutex_);

  // gRPC's.
  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(const grpc::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Generation;
  class Handle;

  void SetAlarm(const std::shared_ptr<Generation>& generation, absl::Time deadline);
  /// Ends it here, whatever the engine does, which is told.
  void End(Generation& generation, absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndIndex(const Generation& generation, int32_t index) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Takes it out of `calls_`, and queues what the engine has to hear. False: it was taken before.
  bool Take(const Generation& generation) ABSL_LOCKS_EXCLUDED(mutex_);
  void Find(const v1::GenerateManyResponse& response) ABSL_LOCKS_EXCLUDED(mutex_);
  void Write() ABSL_LOCKS_EXCLUDED(mutex_);
  void CloseIfIdle() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string model_name_, card_hash_;
  std::shared_ptr<EngineStream> self_;
  grpc::ClientContext context_;
  v1::GenerateManyRequest current_;                 // what the write under way reads
  v1::GenerateManyResponse response_;               // the reader's
  std::vector<std::shared_ptr<Generation>> found_;  // the reader's: whose the outputs are

  absl::Mutex mutex_;
  absl::flat_hash_map<int64_t, std::shared_ptr<Generation>> calls_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::GenerateManyRequest> pending_ ABSL_GUARDED_BY(mutex_);
  int64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;  // nothing comes any more
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace swiftcache::gateway::rpc
