// SPDX-License-Identifier: Apache-2.0
// The engine without its doors: requests of token ids in, token events out, one loop thread that owns scheduler, block
// tables, prefix tree and sequences.
//
//   ASSIGN_OR_RETURN(EngineMemory memory, CreateEngineMemory(options, model->geometry(), device));
//   auto engine = Engine::Create(options, std::move(memory), std::move(model), std::nullopt, clock, metrics);
//   engine->Start();
//   RETURN_IF_ERROR(engine->Submit(std::move(request), std::move(sink)));
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "engine/backend/device.h"
#include "engine/coordinator/coordinator.h"
#include "engine/coordinator/loop_message.h"
#include "engine/exec/engine_load.h"
#include "engine/exec/engine_memory.h"
#include "engine/exec/engine_options.h"
#include "engine/exec/request.h"
#include "engine/models/model.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::exec {

/// With what an engine lends and leases memory. Ownership: borrows; outlives the engine's ShutDown.
struct SharingDependencies {
  transport::Transport* transport = nullptr;
  coordinator::Coordinator* coordinator = nullptr;
};

/// Thread-safety: Submit, CountRefusal, Cancel, Post, Load, UpdateMetrics, Drain, ShutDown from any thread. Ownership: owns
/// model, KV memory, the loop thread and the one that calls the sinks. Errors: as documented per function; a request's
/// own failure reaches its sink.
class Engine {
 public:
  /// `sharing`: there where options.share is true, and only there. REQUIRES: the memory was created with the same
  /// options, for the geometry of this model.
  static std::unique_ptr<Engine> Create(const EngineOptions& options, EngineMemory memory,
                                        std::unique_ptr<models::Model> model,
                                        const std::optional<SharingDependencies>& sharing, const Clock& clock,
                                        Metrics& metrics);
  /// With its memory, for an engine that shares nothing. Errors: CreateEngineMemory's. REQUIRES: !options.share.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options, backend::Device& device,
                                                        std::unique_ptr<models::Model> model, const Clock& clock,
                                                        Metrics& metrics);
  virtual ~Engine() = default;

  /// Starts the threads. Called once.
  virtual void Start() = 0;
  /// INVALID_ARGUMENT, OUT_OF_RANGE (prompt longer than max_model_len or the arena, or than leases serve within max_tpot),
  /// RESOURCE_EXHAUSTED (queue full, or sinks far behind), UNAVAILABLE (draining), ALREADY_EXISTS (a live request of that
  /// id). On error the sink is never called.
  virtual absl::Status Submit(Request request, std::unique_ptr<ResponseSink> sink) = 0;
  /// A door has refused a request itself, which this engine therefore never saw: for the metrics. REQUIRES: !why.ok().
  virtual void CountRefusal(const absl::Status& why) = 0;
  /// Ends a request within one step; its sink gets CANCELLED. One that is unknown or has ended is ignored, whatever
  /// other request has its id by now. With `index`: ends that continuation, if it has a token, with
  /// FinishReason::kCancelled; the others go on.
  virtual void Cancel(const std::string& request_id, RequestNumber number, std::optional<int32_t> index) = 0;
  /// The coordinator's push function. A step under way hears at once what concerns it, the loop after the step. From the
  /// engine's creation to its end; does not block.
  virtual void Post(coordinator::LoopMessage message) = 0;
  virtual EngineLoad Load() const = 0;
  /// Brings metrics up to now that are computed only to be read.
  virtual void UpdateMetrics() = 0;
  virtual int64_t max_model_len_tokens() const = 0;
  /// Refuses new requests, and waits until `deadline` for live ones to finish. The loop lives on.
  virtual void Drain(absl::Time deadline) = 0;
  /// Refuses new requests, lets live ones finish until `deadline` (of the clock), ends the rest and joins the loop:
  /// those with a token get FinishReason::kCancelled and OK, the others UNAVAILABLE. When it returns, every sink has
  /// heard OnDone and is gone. Not to be called by a sink.
  virtual void ShutDown(absl::Time deadline) = 0;
};

}  // namespace swiftcache::engine::exec
