// SPDX-License-Identifier: Apache-2.0
// Measures the steps of a loop: where the time of prefills goes, how long computing stood still for KV, how much the
// borrowers of this engine's memory slow it down.
//
//   meter.Begin();
//   ...plan, forward...
//   meter.Computed(plan, {.computed = true, .in_place_bytes = 4096});
//   ...sample... meter.FirstToken(continuation);
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/exec/engine_metrics.h"
#include "engine/exec/layer_streamer.h"
#include "engine/exec/live_request.h"
#include "engine/meter/interference_meter.h"
#include "engine/sched/scheduler.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::exec {

/// A step is under lease traffic where, between its begin and the end of its forward pass, a borrower's store was
/// copied into the own arena or a borrower told that he had read (TransportStats: received_bytes, borrowers_read); how
/// much does not matter. Readers tell after each layer and after each copy, so that a step shorter than a borrower's
/// layer may be taken for a quiet one. Steps that themselves read leases, store to them or were cut short say nothing
/// about interference and are left out. Thread-safety: none; the step loop owns it. Ownership: borrows what is handed
/// in. Errors: none. Cost: a few microseconds a step.
class StepMeter {
 public:
  struct Outcome {
    int64_t in_place_bytes = 0;  // of leases, read where they lie
    bool whole = true;           // not cut short
  };
  StepMeter(const Clock& clock, EngineMetrics* metrics) : clock_(clock), metrics_(*metrics) {}

  /// `streamer`: null where nothing is streamed.
  void Share(const transport::Transport* transport, const LayerStreamer* streamer);
  void Begin();
  /// The forward pass of the plan has ended. Before its sequences change.
  void Computed(const sched::StepPlan& plan, const Outcome& outcome);
  /// In the step that computed it.
  void FirstToken(const Continuation& continuation);

 private:
  struct Moved {  // since the start
    transport::TransportStats transport;
    absl::Duration stall;
  };
  Moved ReadMoved() const;
  void ChargePrefills(const sched::StepPlan& plan, const Moved& after);
  void NoteInterference(const sched::StepPlan& plan, const Moved& after);

  const Clock& clock_;
  EngineMetrics& metrics_;
  const transport::Transport* transport_ = nullptr;
  const LayerStreamer* streamer_ = nullptr;
  absl::Time begin_, computed_;
  Moved before_;
  meter::InterferenceMeter interference_;
  absl::Time published_ = absl::InfinitePast();
};

}  // namespace swiftcache::engine::exec
