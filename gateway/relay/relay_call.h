// SPDX-License-Identifier: Apache-2.0
// One request under way: its attempts on engines, its continuations, its end.
//
//   auto call = std::make_shared<RelayCall>(std::move(inputs), env, on_end);
//   RETURN_IF_ERROR(call->Start());
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "gateway/fleet/fleet.h"
#include "gateway/relay/relay.h"
#include "gateway/relay/relay_metrics.h"
#include "gateway/relay/text_continuation.h"
#include "gateway/route/route.h"

namespace swiftcache::gateway::relay {

/// What all calls share. What is borrowed outlives every call.
struct RelayEnv {
  fleet::Fleet& fleet;
  const Clock& clock;
  RelayMetrics& metrics;
  size_t first_engine;  // of PickEngine
};

/// Thread-safety: Cancel and Abort at any time; engine events come one at a time. Ownership: shared by the door, the
/// relay and the attempt under way; lives as long as one of them. Errors: Start: as route::PickEngine; later ones reach
/// the sink. No lock is held while a sink or an engine is called.
/// Of a continuation that a stop string has ended here, what the engine still sends is dropped, and usage does not count
/// it.
class RelayCall final : public GenerateCall, public std::enable_shared_from_this<RelayCall> {
 public:
  struct Inputs {
    GenerateRequest request;
    std::string engine_id;   // unique over all gateways; the client's own id need not be unique
    fleet::ModelView model;  // REQUIRES: model.text.ok()
    std::vector<int32_t> prompt;
    std::shared_ptr<GenerateSink> sink;
  };
  RelayCall(Inputs inputs, const RelayEnv& env, std::function<void(RelayCall*)> on_end);

  /// Makes the first attempt. On error neither the sink nor on_end is ever called.
  absl::Status Start();
  /// Ends the request with `reason` unless it ends by itself first.
  void Abort(absl::Status reason) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string& request_id() const override { return request_.request_id; }
  const std::vector<int32_t>& prompt_ids() const override { return engine_request_.token_ids; }
  void Cancel(absl::Status why) override { Abort(std::move(why)); }

 private:
  class Attempt;

  absl::StatusOr<std::shared_ptr<fleet::EngineLink>> NextEngine() const;
  void StartAttempt(const std::shared_ptr<fleet::EngineLink>& engine);
  void CountAttempt();
  void BeginAttempt(int attempt) ABSL_LOCKS_EXCLUDED(mutex_);
  void StoreHandle(int attempt, std::shared_ptr<fleet::EngineCall> handle) ABSL_LOCKS_EXCLUDED(mutex_);
  void CancelEngine() ABSL_LOCKS_EXCLUDED(mutex_);
  void CancelIndex(int32_t index) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnEngineLost(int attempt, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status EndAttempt(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnEngineEvent(fleet::EngineEvent event);
  void OnEngineDone(const absl::Status& status);
  absl::Status OutcomeOf(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status LostError(absl::string_view why) const;
  absl::Status Retry(const absl::Status& cause);
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void Log(const absl::Status& status) const;
  bool aborted() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool lost() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t relayed_tokens() const;

  const GenerateRequest request_;
  const RelayEnv env_;
  const std::function<void(RelayCall*)> on_end_;
  const std::string engine_id_;
  fleet::EngineRequest engine_request_;

  // Touched by Start and then by one engine event at a time.
  fleet::ModelView model_;
  const std::shared_ptr<const fleet::ModelText> text_;
  std::shared_ptr<GenerateSink> sink_;
  std::deque<TextContinuation> continuations_;  // by index; a deque never moves them
  size_t continuations_ended_ = 0;
  size_t ended_by_engine_ = 0;  // which computes the others until it is cancelled
  bool sent_ = false;
  int64_t text_bytes_ = 0;
  bool cut_off_ = false;  // by the engine, which shut down before the end
  absl::Duration time_to_first_token_ = absl::ZeroDuration();
  route::Tried tried_;
  absl::Status full_;      // the last engine's RESOURCE_EXHAUSTED
  absl::Status too_long_;  // the first engine's OUT_OF_RANGE
  std::string engine_name_;
  fleet::EngineLink::InFlight in_flight_;
  int attempts_ = 0;

  mutable absl::Mutex mutex_;
  std::shared_ptr<fleet::EngineCall> handle_ ABSL_GUARDED_BY(mutex_);
  int handle_attempt_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<int32_t> cancelled_early_ ABSL_GUARDED_BY(mutex_);  // indices, before the attempt had its handle
  bool cancel_engine_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status abort_reason_ ABSL_GUARDED_BY(mutex_);
  int under_way_ ABSL_GUARDED_BY(mutex_) = 0;  // number of the attempt, 0 between two
  absl::Status loss_ ABSL_GUARDED_BY(mutex_);  // of the attempt under way
};

}  // namespace swiftcache::gateway::relay
