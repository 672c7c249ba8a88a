// SPDX-License-Identifier: Apache-2.0
// The client's end of one Generate call: events go out one by one as fast as the client reads, and no faster.
//
//   return GenerateStream::Start(relay, *context, std::move(request), {});
#pragma once

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "gateway/relay/relay.h"
#include "swiftcache/v1/generate.pb.h"

namespace swiftcache::gateway::rpc {

/// Thread-safety: safe. Ownership: owns itself until gRPC's OnDone; the relay shares it until its OnDone.
/// Errors: a client that leaves more than max_unread_bytes unread has its request cancelled and gets
/// RESOURCE_EXHAUSTED.
class GenerateStream final : public grpc::ServerWriteReactor<v1::GenerateResponse>,
                             public relay::GenerateSink,
                             public std::enable_shared_from_this<GenerateStream> {
 public:
  struct Options {
    int64_t max_unread_bytes = int64_t{4} << 20;
  };
  /// Hands the request to the relay, or ends the call with what was wrong.
  static grpc::ServerWriteReactor<v1::GenerateResponse>* Start(relay::Relay& relay,
                                                               absl::StatusOr<relay::GenerateRequest> request,
                                                               const Options& options);
  explicit GenerateStream(const Options& options) : options_(options) {}

  void OnEvent(relay::GenerateEvent event) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(absl::Status status) override ABSL_LOCKS_EXCLUDED(mutex_);

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCancel() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone() override;

 private:
  enum class Action { kNone, kWrite, kFinish };

  void Attach(std::shared_ptr<relay::GenerateCall> call) ABSL_LOCKS_EXCLUDED(mutex_);
  void Next() ABSL_LOCKS_EXCLUDED(mutex_);
  Action Decide() ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveUp(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  std::shared_ptr<GenerateStream> self_;  // gRPC's share, given back in OnDone
  v1::GenerateResponse current_;          // the message under way: touched only by who set writing_
  absl::Status end_status_;               // likewise, by who set finished_

  absl::Mutex mutex_;
  std::shared_ptr<relay::GenerateCall> call_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::GenerateResponse> unread_ ABSL_GUARDED_BY(mutex_);
  int64_t unread_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool given_up_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace swiftcache::gateway::rpc
