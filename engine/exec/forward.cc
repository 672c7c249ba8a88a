// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/forward.h"

#include <algorithm>

#include "common/base/status_macros.h"

namespace swiftcache::engine::exec {
namespace {

template <typename T>
void AddOnce(const T& value, std::vector<T>& values) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

}  // namespace

absl::StatusOr<Forward::Outcome> Forward::Run(const sched::StepPlan& plan, bool may_cut_short) {
  Gather(plan);
  progress_.fetch_add(1, std::memory_order_relaxed);
  absl::StatusOr<Outcome> outcome = RunModel(may_cut_short);
  if (!streamed_.empty()) leases_->streamer->End();  // a step may fail, or be cut short, with a layer on its way
  return outcome;
}

absl::StatusOr<Forward::Outcome> Forward::RunModel(bool may_cut_short) {
  RETURN_IF_ERROR(model_->Begin({.token_ids = token_ids_, .sequences = sequences_, .logit_rows = logit_rows_}));
  Outcome outcome;
  RETURN_IF_ERROR(RunLayers(may_cut_short, outcome));
  if (outcome.cut_short) return outcome;
  ASSIGN_OR_RETURN(outcome.logits, model_->Finish());
  return outcome;
}

absl::Status Forward::RunLayers(bool may_cut_short, Outcome& outcome) {
  const absl::Time begin = may_cut_short ? leases_->clock->Now() : absl::InfinitePast();
  for (int64_t layer = 0; layer < model_->geometry().num_layers; ++layer) {
    if (!streamed_.empty()) {
      NoteLost(leases_->streamer->Arrive(layer), outcome);
      PointAt(layer);
      leases_->streamer->Prefetch(layer + 1);
    }
    RETURN_IF_ERROR(model_->RunLayer(layer));
    progress_.fetch_add(1, std::memory_order_relaxed);
    CheckInPlace(outcome);
    if ((may_cut_short && TooLate(begin, layer + 1)) || AllLost(outcome)) {
      outcome.cut_short = true;
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

void Forward::Gather(const sched::StepPlan& plan) {
  token_ids_.clear();
  blocks_.clear();
  sequences_.clear();
  logit_rows_.clear();
  lease_ids_.clear();
  readings_.clear();
  in_place_.clear();
  streamed_.clear();
  if (leases_ && leases_->streamer != nullptr) leases_->streamer->Begin();
  int64_t num_blocks = 0;
  for (const sched::Chunk& chunk : plan.chunks) num_blocks += chunk.sequence->blocks.size();
  blocks_.reserve(num_blocks);  // the spans below must not move
  for (const sched::Chunk& chunk : plan.chunks) {
    const sched::Sequence& sequence = *chunk.sequence;
    const auto first = sequence.tokens.begin() + sequence.computed_tokens;
    token_ids_.insert(token_ids_.end(), first, first + chunk.num_tokens);
    std::byte* const* const begin = blocks_.data() + blocks_.size();
    for (int64_t i = 0; i < sequence.blocks.size(); ++i) blocks_.push_back(AddressOf(sequence.blocks[i]));
    sequences_.push_back({.num_rows = chunk.num_tokens,
                          .context_tokens = sequence.computed_tokens,
                          .blocks = std::span(begin, sequence.blocks.size())});
    if (chunk.samples) logit_rows_.push_back(static_cast<int32_t>(token_ids_.size()) - 1);
  }
  if (!streamed_.empty()) leases_->streamer->Prefetch(0);
}

std::byte* Forward::AddressOf(kv::BlockId id) {
  const kv::Place place = cache_->place(id);
  return place.local() ? arena_->Address(place.index) : LeasedAddress(id, place);
}

// In the slots while there are some, else where it lies.
std::byte* Forward::LeasedAddress(kv::BlockId id, kv::Place place) {
  const LeasedRegion& region = leases_->sharing->RegionOf(place.region);
  AddOnce(region.lease, lease_ids_);
  const Reading reading{sequences_.size(), region.lease};
  if (readings_.empty() || readings_.back() != reading) readings_.push_back(reading);
  if (leases_->streamer != nullptr) {
    const int64_t offset = place.index * arena_->block_bytes();
    if (const auto stream = leases_->streamer->Add(id, region.lease, offset)) {
      streamed_.push_back({blocks_.size(), *stream});
      return nullptr;  // PointAt says where, layer by layer
    }
  }
  auto in_place = std::find_if(in_place_.begin(), in_place_.end(), [&](auto& e) { return e.lease == region.lease; });
  if (in_place == in_place_.end()) in_place = in_place_.insert(in_place, {region.lease, region.view});
  ++in_place->num_blocks;
  return leases_->sharing->Address(place);
}

// The model adds layer * slice_bytes to a block's address.
void Forward::PointAt(int64_t layer) {
  for (const Streamed& s : streamed_) {
    blocks_[s.block] = leases_->streamer->Slice(s.stream, layer) - layer * leases_->streamer->slice_bytes();
  }
}

int64_t Forward::in_place_bytes() const {
  int64_t blocks = 0;
  for (const InPlace& read : in_place_) blocks += read.num_blocks;
  return blocks * arena_->block_bytes();
}

void Forward::NoteLost(std::span<const kv::LeaseId> leases, Outcome& outcome) const {
  for (const kv::LeaseId lease : leases) AddOnce(lease, outcome.lost);
}

void Forward::CheckInPlace(Outcome& outcome) const {
  for (const InPlace& read : in_place_) {
    read.view.NoteRead(read.num_blocks * arena_->block_bytes() / model_->geometry().num_layers);
    if (!read.view.Holds()) AddOnce(read.lease, outcome.lost);
  }
}

bool Forward::AllLost(const Outcome& outcome) const {
  if (outcome.lost.empty()) return false;
  std::vector<size_t> lost;
  for (const Reading& reading : readings_) {
    const bool is_lost = std::find(outcome.lost.begin(), outcome.lost.end(), reading.lease) != outcome.lost.end();
    if (is_lost) AddOnce(reading.sequence, lost);
  }
  return lost.size() == sequences_.size();
}

// True where a lease is due before the rest of the step will be done, at the pace so far or half as slow again.
bool Forward::TooLate(absl::Time begin, int64_t layers_done) const {
  if (layers_done == model_->geometry().num_layers) return false;
  const absl::Time due = leases_->urgency->Earliest(lease_ids_);
  if (due == absl::InfiniteFuture()) return false;
  const absl::Time now = leases_->clock->Now();
  const int64_t layers_left = model_->geometry().num_layers - layers_done;
  return now + (now - begin) / layers_done * layers_left * 3 / 2 > due;
}

}  // namespace swiftcache::engine::exec
