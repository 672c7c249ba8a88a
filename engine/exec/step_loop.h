// SPDX-License-Identifier: Apache-2.0
// The step loop's state and its one verb: a step is plan, forward, commit and sample, publish.
//
//   loop.Accept(std::move(request));
//   const absl::Time due = loop.Turn();       // ...messages and requests, until then at most; then the next
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "engine/backend/kv_layout.h"
#include "engine/backend/kv_memory.h"
#include "engine/coordinator/loop_events.h"
#include "engine/coordinator/loop_message.h"
#include "engine/exec/decode_bound.h"
#include "engine/exec/engine_load.h"
#include "engine/exec/engine_metrics.h"
#include "engine/exec/engine_options.h"
#include "engine/exec/forward.h"
#include "engine/exec/layer_streamer.h"
#include "engine/exec/limited_wait.h"
#include "engine/exec/live_requests.h"
#include "engine/exec/outbox.h"
#include "engine/exec/own_memory.h"
#include "engine/exec/sharing.h"
#include "engine/exec/starvation.h"
#include "engine/exec/step_meter.h"
#include "engine/exec/urgency.h"
#include "engine/kv/kv_cache.h"
#include "engine/models/model.h"
#include "engine/sched/leased_pace.h"
#include "engine/sched/scheduler.h"
#include "engine/sched/step_pace.h"

namespace swiftcache::engine::exec {

/// What a loop that lends and leases memory works with. Ownership: borrows; outlives the loop's steps.
struct LoopSharing {
  transport::Transport* transport = nullptr;
  coordinator::LoopEvents* coordinator = nullptr;
  Urgency* urgency = nullptr;
};

/// Hears of changes before the sinks of the requests concerned do, and takes what these are to be told. Called by the
/// loop's thread; must not block.
class LoopObserver {
 public:
  virtual ~LoopObserver() = default;
  virtual void OnStarted(const LiveRequest& request) = 0;  // runs for the first time
  virtual void OnEnded(const LiveRequest& request) = 0;    // its blocks are free already
  virtual void OnLoad(const EngineLoad& load) = 0;
  virtual void Deliver(OutboundBatch batch) = 0;  // once a step, perhaps empty; to be told in order (CallSinks)
  /// No step can be computed any more; what was asked is ended.
  virtual void OnDeviceLost(const absl::Status& why) = 0;
};

/// Owns scheduler, block tables, prefix tree and sequences. When the end of a request is delivered, its blocks are free
/// and the load that says so is published. The loop's thread does no I/O. Thread-safety: none; one thread calls it.
/// Ownership: owns model, KV memory and requests; borrows clock, metrics, observer. Errors: a failing model fails the
/// requests of that step (INTERNAL) and nothing else; a lost device ends all (UNAVAILABLE).
class StepLoop {
 public:
  /// `layout`: of the blocks that `memory` is cut into. `sharing`: none in an engine that shares nothing.
  StepLoop(const EngineOptions& options, const backend::KvLayout& layout, std::unique_ptr<models::Model> model,
           std::unique_ptr<backend::KvMemory> memory, const std::optional<LoopSharing>& sharing, const Clock& clock,
           EngineMetrics* metrics, LoopObserver* observer);

  /// REQUIRES: checked (request_check.h), and no live request has its id.
  void Accept(std::unique_ptr<LiveRequest> request);
  /// Ends the request with CANCELLED. Ignored where none of this id lives, or another does. With `index`: ends that
  /// continuation alone, with FinishReason::kCancelled. Ignored where it has no token yet: the others may wait for it.
  void Cancel(const std::string& request_id, RequestNumber number, std::optional<int32_t> index = {});
  /// Ends everything: what has a token with FinishReason::kCancelled, the rest with UNAVAILABLE.
  void EndAll();
  bool has_work() const { return scheduler_.has_work() || live_.any_parked(); }
  /// A step, or what can be done without one. Returns when the next turn is due if nobody says anything meanwhile; the
  /// past: at once.
  absl::Time Turn();
  /// A Turn's. REQUIRES: has_work(). False: all sequences wait for memory that is on its way; nothing was computed, and
  /// ServeBetweenSteps is next.
  bool Step();

  /// What its Urgency has noted already. In a loop that shares nothing: ignored.
  void Handle(const coordinator::LoopMessage& message);
  /// Sets going what can be done without a step. To be called after a Step that computed nothing, when messages were
  /// handled while there is no work, and at NextWakeup.
  void ServeBetweenSteps();
  absl::Time NextWakeup() const;

  /// What is computed only to be read, into the metrics. Any thread.
  void UpdateMetrics() { meter_.Publish(); }
  EngineLoad load() const;
  /// May be asked by any thread.
  const DecodeBound& decode_bound() const { return decode_bound_; }
  /// Of the forward pass, and turns without one in which somebody starves, which has an end; may be read by any thread.
  int64_t progress() const { return forward_.progress() + turns_starved_.load(std::memory_order_relaxed); }
  /// Recounts blocks, sequences and requests. INTERNAL says what does not add up.
  absl::Status CheckInvariants() const;

 private:
  std::unique_ptr<Sharing> MakeSharing(const LoopSharing& parts);
  DecodeBound MakeDecodeBound(const std::optional<LoopSharing>& parts) const;
  std::unique_ptr<LayerStreamer> MakeStreamer(const LoopSharing& parts) const;
  void NoteStarts(const sched::StepPlan& plan);
  sched::StepPlan Plan();
  bool ServeLeases(const sched::StepPlan& plan);
  bool MayCutShort() const;
  bool HoldsBack();
  Borrowing::Stake StakeOf(const sched::StepPlan& plan) const;
  void RunStep(const sched::StepPlan& plan);
  void AdaptTokensOnLeases(const sched::StepPlan& plan, const Forward::Outcome& outcome);
  int64_t TokensOnLeases() const;
  absl::Duration TimeOnLeases() const;
  void TakeTokens(const sched::StepPlan& plan, std::vector<backend::Sampled> tokens);
  void AdmitParked();
  void EndStarved();
  void AddEnd(const Continuation& continuation, FinishReason why);
  void ForgetNeed();
  std::string WhyStarved(const LiveRequest& request) const;
  int64_t TokensNotRunning() const { return scheduler_.waiting_tokens() + live_.parked_tokens(); }
  bool StreamsAll(const LoopSharing& parts) const;
  bool Streams(const LoopSharing& parts) const;  // some, at least
  void SizeLayerStream();
  void Append(Continuation& continuation, sample::SampledToken token, absl::Time now);
  std::optional<absl::Duration> NoteTime(Continuation& continuation, absl::Time now);
  void BeginSiblings(LiveRequest& request);
  void Finish(Continuation& continuation);  // it has all its tokens
  void End(Continuation& continuation);
  void CancelOne(LiveRequest& request, int32_t index);
  void LoseDevice(const absl::Status& why);
  void FailStep(const sched::StepPlan& plan, const absl::Status& status);
  void Close(LiveRequest& request, const absl::Status& status);
  void Publish();

  const EngineOptions options_;
  const backend::KvLayout layout_;
  const std::unique_ptr<models::Model> model_;
  const std::unique_ptr<backend::KvMemory> memory_;
  OwnMemory own_;
  const Clock& clock_;
  EngineMetrics* const metrics_;
  LoopObserver* const observer_;

  kv::KvCache cache_;
  sched::Scheduler scheduler_;
  const std::unique_ptr<Sharing> sharing_;         // null: nothing is lent or leased
  const std::unique_ptr<LayerStreamer> streamer_;  // null: leases, if any, are read in place
  const DecodeBound decode_bound_;
  Forward forward_;
  StepMeter meter_;
  sched::StepPace pace_;  // of steps that read no leases
  sched::LeasedPace leased_pace_{pace_};
  LiveRequests live_;  // after cache_: holds its blocks
  Starvation starvation_;
  std::vector<sched::ChunkOnce> kept_;  // of a step that was cut short and is to go on; else empty
  int64_t cut_short_in_a_row_ = 0;
  bool kept_for_leases_ = false;  // a step was cut short for what it reads, and is to go on
  LimitedWait held_back_;         // steps, for blocks that are being saved
  int64_t tokens_on_leases_;      // of a step that reads any, at most: fewer after steps that were cut short
  Outbox outbox_;
  int64_t next_sequence_ = 0;
  std::atomic<int64_t> turns_starved_ = 0;
  int64_t steps_ = 0;
  int64_t preemptions_ = 0;
  int64_t prompt_computed_ = 0, prompt_local_ = 0, prompt_donor_ = 0;  // tokens, by where their KV came from
};

}  // namespace swiftcache::engine::exec
