// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/step_meter.h"

namespace swiftcache::engine::exec {

void StepMeter::Share(const transport::Transport* transport, const LayerStreamer* streamer) {
  transport_ = transport;
  streamer_ = streamer;
}

StepMeter::Moved StepMeter::ReadMoved() const {
  Moved moved;
  if (transport_ != nullptr) moved.transport = transport_->stats();
  if (streamer_ != nullptr) moved.stall = streamer_->stall();
  return moved;
}

void StepMeter::Begin() {
  begin_ = clock_.Now();
  before_ = ReadMoved();
}

void StepMeter::Computed(const sched::StepPlan& plan, const Outcome& outcome) {
  computed_ = clock_.Now();
  const Moved after = ReadMoved();
  const absl::Duration time = computed_ - begin_, stall = after.stall - before_.stall;
  if (streamer_ != nullptr && !streamer_->empty()) metrics_.Stalled(stall);
  if (outcome.in_place_bytes > 0) metrics_.ReadInPlace(outcome.in_place_bytes);
  for (const sched::Chunk& chunk : plan.chunks) {
    auto& continuation = *static_cast<Continuation*>(chunk.sequence);
    if (continuation.first_token_time) continue;
    continuation.in_steps += time;
    continuation.prefill.execute += time - stall;
    continuation.prefill.load += after.transport.load_time - before_.transport.load_time;
    continuation.prefill.store += after.transport.store_time - before_.transport.store_time;
  }
}

void StepMeter::FirstToken(const Continuation& continuation) {
  PrefillTimes times = continuation.prefill;
  times.queue = computed_ - continuation.request->arrival_time - continuation.in_steps;
  times.execute += *continuation.first_token_time - computed_;
  metrics_.Prefilled(times);
}

}  // namespace swiftcache::engine::exec
