// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/step_meter.h"

namespace swiftcache::engine::exec {
namespace {

using meter::InterferenceMeter;

constexpr absl::Duration kGroup = absl::Milliseconds(20);  // of steps
constexpr int64_t kDecodesOfGroup = 4;

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

absl::Duration StepMeter::Computed(const sched::StepPlan& plan, const Outcome& outcome) {
  computed_ = clock_.Now();
  const Moved after = ReadMoved();
  const bool streamed = streamer_ != nullptr && !streamer_->empty();
  if (streamed) metrics_.Stalled(after.stall - before_.stall);
  if (outcome.in_place_bytes > 0) metrics_.ReadInPlace(outcome.in_place_bytes);
  step_time_ = computed_ - begin_ + (outcome.goes_on ? step_time_ : absl::ZeroDuration());
  outcome.cut_short ? metrics_.CutShort() : metrics_.Computed(step_time_, plan);
  ChargePrefills(plan, after);
  const bool whole = !outcome.cut_short && !outcome.goes_on;
  const bool reads = streamed || outcome.in_place_bytes > 0;
  const bool is_like_others = transport_ != nullptr && whole && !reads;
  if (is_like_others && after.transport.stored_bytes == before_.transport.stored_bytes) NoteInterference(plan, after);
  return step_time_;
}

void StepMeter::ChargePrefills(const sched::StepPlan& plan, const Moved& after) {
  const absl::Duration time = computed_ - begin_;
  for (const sched::Chunk& chunk : plan.chunks) {
    Continuation& continuation = AsContinuation(*chunk.sequence);
    if (continuation.first_token_time) continue;
    continuation.in_steps += time;
    continuation.prefill.execute += time - (after.stall - before_.stall);
    continuation.prefill.load += after.transport.load_time - before_.transport.load_time;
    continuation.prefill.store += after.transport.store_time - before_.transport.store_time;
  }
}

void StepMeter::NoteInterference(const sched::StepPlan& plan, const Moved& after) {
  if (!group_.steps.empty() && begin_ - group_.begin >= kGroup) JudgeGroup();
  if (group_.steps.empty()) {
    group_.begin = begin_;
    group_.at_begin = before_.transport;
  }
  group_.at_end = after.transport;
  const meter::StepShape shape = ShapeOf(plan);
  const absl::Duration time = computed_ - begin_;
  if (shape.prefill_tokens == 0) {
    group_.decode_time += time;
    if (++group_.decodes > kDecodesOfGroup) return;
    group_.noted_decode_time += time;
  }
  group_.steps.push_back({computed_, shape, time});
}

void StepMeter::JudgeGroup() {
  const bool traffic = group_.at_end.received_bytes != group_.at_begin.received_bytes ||
                       group_.at_end.borrowers_read != group_.at_begin.borrowers_read;
  for (const Measured& step : group_.steps) {
    const bool speaks_for_others = step.shape.prefill_tokens == 0;
    interference_.Note(step.end, step.shape, step.time, traffic,
                       speaks_for_others ? absl::FDivDuration(group_.decode_time, group_.noted_decode_time) : 1);
  }
  group_.steps.clear();
  group_.decodes = 0;
  group_.decode_time = group_.noted_decode_time = absl::ZeroDuration();
  if (traffic) OfferComparisons();
}

// The loop does not wait for a scrape that is reading: the next one has what this one missed.
void StepMeter::OfferComparisons() {
  metrics_.SetLeaseTraffic(interference_.traffic(meter::Phase::kPrefill), interference_.traffic(meter::Phase::kDecode));
  if (!mutex_.TryLock()) return;
  prefill_comparisons_ = interference_.comparisons(meter::Phase::kPrefill);
  decode_comparisons_ = interference_.comparisons(meter::Phase::kDecode);
  mutex_.Unlock();
}

void StepMeter::Publish() {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = clock_.Now();
  metrics_.SetInterference(InterferenceMeter::EstimateOf(prefill_comparisons_, now),
                           InterferenceMeter::EstimateOf(decode_comparisons_, now));
}

void StepMeter::FirstToken(const Continuation& continuation) {
  PrefillTimes times = continuation.prefill;
  times.queue = computed_ - continuation.request->arrival_time - continuation.in_steps;
  times.execute += *continuation.first_token_time - computed_;
  metrics_.Prefilled(times);
}

}  // namespace swiftcache::engine::exec
