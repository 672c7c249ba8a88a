// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/step_meter.h"

namespace swiftcache::engine::exec {
namespace {

constexpr absl::Duration kPublishEvery = absl::Seconds(1);

// A chunk of one token is a decode, be it the last of a prompt: it costs the same.
meter::StepShape ShapeOf(const sched::StepPlan& plan) {
  meter::StepShape shape;
  for (const sched::Chunk& chunk : plan.chunks) {
    const int64_t n = chunk.num_tokens, pairs = n * chunk.sequence->computed_tokens + n * (n + 1) / 2;
    (n == 1 ? shape.decode_tokens : shape.prefill_tokens) += n;
    (n == 1 ? shape.decode_pairs : shape.prefill_pairs) += pairs;
  }
  return shape;
}

}  // namespace

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
  const bool streamed = streamer_ != nullptr && !streamer_->empty();
  if (streamed) metrics_.Stalled(after.stall - before_.stall);
  if (outcome.in_place_bytes > 0) metrics_.ReadInPlace(outcome.in_place_bytes);
  ChargePrefills(plan, after);
  if (transport_ == nullptr || !outcome.whole || streamed || outcome.in_place_bytes > 0) return;
  if (after.transport.stored_bytes == before_.transport.stored_bytes) NoteInterference(plan, after);
}

void StepMeter::ChargePrefills(const sched::StepPlan& plan, const Moved& after) {
  const absl::Duration time = computed_ - begin_;
  for (const sched::Chunk& chunk : plan.chunks) {
    auto& continuation = *static_cast<Continuation*>(chunk.sequence);
    if (continuation.first_token_time) continue;
    continuation.in_steps += time;
    continuation.prefill.execute += time - (after.stall - before_.stall);
    continuation.prefill.load += after.transport.load_time - before_.transport.load_time;
    continuation.prefill.store += after.transport.store_time - before_.transport.store_time;
  }
}

void StepMeter::NoteInterference(const sched::StepPlan& plan, const Moved& after) {
  const bool traffic = after.transport.received_bytes != before_.transport.received_bytes ||
                       after.transport.borrowers_read != before_.transport.borrowers_read;
  interference_.Note(computed_, ShapeOf(plan), computed_ - begin_, traffic);
  if (computed_ - published_ < kPublishEvery) return;
  published_ = computed_;
  metrics_.SetInterference(interference_.At(meter::Phase::kPrefill, computed_),
                           interference_.At(meter::Phase::kDecode, computed_));
}

void StepMeter::FirstToken(const Continuation& continuation) {
  PrefillTimes times = continuation.prefill;
  times.queue = computed_ - continuation.request->arrival_time - continuation.in_steps;
  times.execute += *continuation.first_token_time - computed_;
  metrics_.Prefilled(times);
}

}  // namespace swiftcache::engine::exec
