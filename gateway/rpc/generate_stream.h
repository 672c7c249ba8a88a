// SPDX-License-Identifier: Apache-2.0
// The response stream of one Generate call: sends events one by one, as fast as the client reads.
//
//   const std::shared_ptr<GenerateStream> stream = GenerateStream::Create({});
//   stream->CutIfStalled(*context, options.stall_timeout, stream);
//   stream->Begin(relay, std::move(request));  // from any thread, also when the reactor was handed to gRPC
//   return stream.get();
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/stall_timeout.h"
#include "common/rpc/stream_writer.h"
#include "gateway/relay/relay.h"
#include "swiftcache/v1/generate.pb.h"

namespace swiftcache::gateway::rpc {

/// RESOURCE_EXHAUSTED always says when to retry; other codes stay as they are.
absl::Status WithRetryInfo(absl::Status status);

/// Thread-safety: safe. Ownership: owns itself until gRPC's OnDone; the relay shares it until its OnDone.
/// Errors: a client that leaves more than max_unread_bytes unread has its request cancelled and gets
/// RESOURCE_EXHAUSTED. One that reads nothing for stall_timeout, also of an answer that has ended, gets CANCELLED.
class GenerateStream final : public StreamWriter<v1::GenerateResponse>,
                             public relay::GenerateSink,
                             public std::enable_shared_from_this<GenerateStream> {
 public:
  struct Options {
    int64_t max_unread_bytes = int64_t{16} << 20;  // of memory, several times what goes on the wire
    absl::Duration stall_timeout = kStallTimeout;
    std::function<void()> on_slow_reader_cut = {};  // once a call, for either reason; must not block
  };
  static std::shared_ptr<GenerateStream> Create(const Options& options);
  /// Once: passes the request to the relay, or ends the call with the error in `request`. A request whose client has left
  /// is counted as refused.
  void Begin(relay::Relay& relay, absl::StatusOr<relay::GenerateRequest> request) ABSL_LOCKS_EXCLUDED(mutex_);
  explicit GenerateStream(const Options& options) : options_(options) {}

  void OnEvent(relay::GenerateEvent event) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(absl::Status status) override ABSL_LOCKS_EXCLUDED(mutex_);

  void OnDone() override;

 private:
  bool IsOver() ABSL_LOCKS_EXCLUDED(mutex_);
  void Attach(std::shared_ptr<relay::GenerateCall> call) ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveUp(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  void CutReader(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnReaderGone() override { GiveUp(relay::ClientGone()); }
  void OnStalled() override ABSL_LOCKS_EXCLUDED(mutex_);
  bool MayWrite() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return call_ != nullptr; }
  void OnNext(v1::GenerateResponse& response) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  std::shared_ptr<GenerateStream> self_;  // gRPC's share, given back in OnDone

  std::shared_ptr<relay::GenerateCall> call_ ABSL_GUARDED_BY(mutex_);
  int64_t unread_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of memory, of messages in `pending_`
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;          // for being slow
};

}  // namespace swiftcache::gateway::rpc
