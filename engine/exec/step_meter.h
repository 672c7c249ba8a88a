// SPDX-License-Identifier: Apache-2.0
// Measures the steps of a loop: where the time of prefills goes, how long computing stood still for KV, how much the
// borrowers of this engine's memory slow it down.
//
//   meter.Begin();
//   ...plan, forward...
//   meter.Computed(plan, {.in_place_bytes = 4096});
//   ...sample... meter.FirstToken(continuation);
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/exec/engine_metrics.h"
#include "engine/exec/layer_streamer.h"
#include "engine/exec/live_request.h"
#include "engine/meter/interference_meter.h"
#include "engine/sched/scheduler.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::exec {

/// Compares steps under lease traffic with steps without. Traffic: a borrower's store copied in here, or a borrower's
/// word that it has read (TransportStats: received_bytes, borrowers_read), however much; readers give word after each
/// layer and copy.
///
/// Steps are judged in groups: all that begin within 20 ms are under traffic if there was any from the first one's
/// begin to the last one's end. Judged singly, a slow step would see more traffic because it is slow, and traffic would
/// seem to slow it. Of a group's decodes four stand for all, since what slows one mostly slows all. A step of 20 ms or
/// more is a group of its own, where this bias remains: about the square of the scatter, 1 point at 10 %. Left out:
/// steps that read leases, store to them, or were cut short.
///
/// Thread-safety: none, but for Publish; the step loop owns it. Ownership: borrows what is handed in. Errors: none.
/// Cost: a few microseconds a step.
class StepMeter {
 public:
  struct Outcome {
    int64_t in_place_bytes = 0;  // of leases, read where they lie
    bool cut_short = false;      // it has no tokens; and
    bool goes_on = false;        // behind what the one before had computed, which was cut short
  };
  /// `transport`: null in an engine that shares nothing; `streamer`: null where nothing is streamed.
  StepMeter(const Clock& clock, EngineMetrics* metrics, const transport::Transport* transport,
            const LayerStreamer* streamer)
      : clock_(clock), metrics_(*metrics), transport_(transport), streamer_(streamer) {}

  void Begin();
  /// The forward pass of the plan has ended. Before its sequences change. Returns what the step has taken, with the parts
  /// before it that it goes on from.
  absl::Duration Computed(const sched::StepPlan& plan, const Outcome& outcome);
  /// The ratio of interference, as of now, into the metrics: before they are read. Any thread.
  void Publish() ABSL_LOCKS_EXCLUDED(mutex_);
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
  void JudgeGroup();
  void OfferComparisons() ABSL_LOCKS_EXCLUDED(mutex_);

  const Clock& clock_;
  EngineMetrics& metrics_;
  const transport::Transport* const transport_;
  const LayerStreamer* const streamer_;
  absl::Time begin_, computed_;
  absl::Duration step_time_;  // of the latest step, with the parts before it that it goes on from
  Moved before_;
  struct Measured {
    absl::Time end;
    meter::StepShape shape;
    absl::Duration time;
  };
  struct Group {  // of steps that are under traffic or not, together
    absl::Time begin;
    transport::TransportStats at_begin, at_end;
    std::vector<Measured> steps;
    int64_t decodes = 0;
    absl::Duration decode_time, noted_decode_time;  // of all, and of those that are in `steps`
  };
  Group group_;
  meter::InterferenceMeter interference_;
  absl::Mutex mutex_;  // the loop only tries it
  meter::Samples prefill_comparisons_ ABSL_GUARDED_BY(mutex_){meter::InterferenceMeter::kComparisons};
  meter::Samples decode_comparisons_ ABSL_GUARDED_BY(mutex_){meter::InterferenceMeter::kComparisons};
};

}  // namespace swiftcache::engine::exec
