// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/forward.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"

namespace swiftcache::engine::exec {
namespace {

template <typename T>
bool Contains(const std::vector<T>& values, const T& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

absl::StatusOr<Forward::Outcome> Forward::Run(const sched::StepPlan& plan, bool may_cut_short) {
  may_cut_short_ = may_cut_short;
  Gather(plan);
  progress_.fetch_add(1, std::memory_order_relaxed);
  begin_ = first_read_ = leases_ ? leases_->clock->Now() : absl::InfinitePast();
  models::ForwardResult result;
  model_
      ->Run({.token_ids = token_ids_,
             .sequences = sequences_,
             .streamed = streamed_,
             .checks = checks_,
             .logit_rows = logit_rows_,
             .samples = samples_},
            this, result)
      .Wait();
  const absl::Status status = result.status;
  Outcome outcome = Conclude(std::move(result));
  if (!status.ok()) return status;
  return outcome;
}

// A step may fail, or be cut short, with a layer on its way.
Forward::Outcome Forward::Conclude(models::ForwardResult result) {
  Outcome outcome{.tokens = std::move(result.tokens), .cut_short = result.cut_short};
  if (!streamed_.empty()) outcome.lost = leases_->streamer->End();
  for (const int32_t check : result.changed) {
    const kv::LeaseId lease = reads_[checked_[check]].lease;
    if (!Contains(outcome.lost, lease)) outcome.lost.push_back(lease);
  }
  return outcome;
}

void Forward::Gather(const sched::StepPlan& plan) {
  token_ids_.clear();
  blocks_.clear();
  sequences_.clear();
  streamed_.clear();
  logit_rows_.clear();
  samples_.clear();
  read_of_.clear();
  reads_.clear();
  lease_ids_.clear();
  readings_.clear();
  if (leases_ && leases_->streamer != nullptr) leases_->streamer->Begin();
  int64_t num_blocks = 0;
  for (const sched::Chunk& chunk : plan.chunks) num_blocks += chunk.sequence->blocks.size();
  blocks_.reserve(num_blocks);  // the spans below must not move
  for (const sched::Chunk& chunk : plan.chunks) {
    const sched::Sequence& sequence = *chunk.sequence;
    const auto first = sequence.tokens.begin() + sequence.computed_tokens;
    token_ids_.insert(token_ids_.end(), first, first + chunk.num_tokens);
    const backend::DeviceAddress* const begin = blocks_.data() + blocks_.size();
    for (int64_t i = 0; i < sequence.blocks.size(); ++i) {
      const kv::Place place = cache_->place(sequence.blocks[i]);
      if (place.local()) {
        blocks_.push_back(own_.base + place.index * own_.block_bytes);
      } else {
        GatherLeased(sequence.blocks[i], place);
      }
    }
    sequences_.push_back({.num_rows = chunk.num_tokens,
                          .context_tokens = sequence.computed_tokens,
                          .blocks = std::span(begin, sequence.blocks.size())});
    if (chunk.samples) GatherSample(AsContinuation(*chunk.sequence));
  }
  GatherChecks();
  if (!streamed_.empty()) leases_->streamer->Start(leases_->sharing->own().last_change());
}

// From the last row gathered.
void Forward::GatherSample(const Continuation& continuation) {
  const auto position = static_cast<int64_t>(continuation.tokens.size());
  samples_.push_back(backend::SampleRowOf(static_cast<int64_t>(logit_rows_.size()), continuation.sampling, position));
  logit_rows_.push_back(static_cast<int32_t>(token_ids_.size()) - 1);
}

// In the slots while there are some, else where it lies.
void Forward::GatherLeased(kv::BlockId id, kv::Place place) {
  LeaseRead& read = reads_[NoteReader(place.region)];
  const int64_t offset = place.index * own_.block_bytes;
  if (leases_->streamer != nullptr) {
    if (const auto slots = leases_->streamer->Add(id, read.lease, offset)) {
      streamed_.push_back({static_cast<int64_t>(blocks_.size()), {(*slots)[0], (*slots)[1]}});
      return blocks_.push_back({});
    }
  }
  CHECK(read.view.base) << "a block of a lease that is not mapped has no slot";  // KvCache::SetStreamCapacity
  ++read.in_place_blocks;
  blocks_.push_back(read.view.base + offset);
}

// The sequence being gathered reads the region; returns its index in reads_.
size_t Forward::NoteReader(kv::RegionId region) {
  const auto [it, is_new] = read_of_.try_emplace(region, reads_.size());
  if (is_new) {
    const LeasedRegion& leased = leases_->sharing->borrowing().RegionOf(region);
    reads_.push_back({leased.lease, leased.view});
    lease_ids_.push_back(leased.lease);
  }
  const Reading reading{sequences_.size(), it->second};
  if (readings_.empty() || readings_.back() != reading) readings_.push_back(reading);
  return it->second;
}

void Forward::GatherChecks() {
  checks_.clear();
  checked_.clear();
  in_place_blocks_ = 0;
  for (size_t i = 0; i < reads_.size(); ++i) {
    if (reads_[i].in_place_blocks == 0) continue;
    in_place_blocks_ += reads_[i].in_place_blocks;
    checks_.push_back(reads_[i].view.word);
    checked_.push_back(i);
  }
}

backend::Fence Forward::Arrived(int64_t layer) {
  return streamed_.empty() ? backend::Fence() : leases_->streamer->Arrived(layer);
}

bool Forward::Read(int64_t layer, const backend::Fence& read) {
  progress_.fetch_add(1, std::memory_order_relaxed);
  if (reads_.empty() && !may_cut_short_) return true;
  if (!streamed_.empty()) leases_->streamer->Release(layer, read);
  for (const size_t i : checked_) {
    reads_[i].view.NoteRead(reads_[i].in_place_blocks * own_.block_bytes / model_->geometry().num_layers);
  }
  if (layer == 0) first_read_ = leases_->clock->Now();
  return !(may_cut_short_ && IsTooLate(layer)) && !AllLost();
}

// True where a lease is due before the rest of the step will be done, at the pace so far or half as slow again.
bool Forward::IsTooLate(int64_t layer) const {
  const int64_t layers_left = model_->geometry().num_layers - layer - 1;
  if (layers_left == 0) return false;
  const absl::Time due = leases_->urgency->Earliest(lease_ids_);
  if (due == absl::InfiniteFuture()) return false;
  const absl::Time now = leases_->clock->Now();
  const absl::Duration of_a_layer = layer == 0 ? now - begin_ : (now - first_read_) / layer;
  return now + of_a_layer * layers_left * 3 / 2 > due;
}

bool Forward::AllLost() const {
  if (reads_.empty()) return false;
  std::vector<bool> lost(reads_.size(), false);
  for (const size_t i : checked_) lost[i] = !reads_[i].view.Holds();
  if (!streamed_.empty()) {
    for (const kv::LeaseId lease : leases_->streamer->Lost()) {
      lost[std::find(lease_ids_.begin(), lease_ids_.end(), lease) - lease_ids_.begin()] = true;
    }
  }
  if (std::find(lost.begin(), lost.end(), true) == lost.end()) return false;
  size_t num_lost = 0;
  std::optional<size_t> last;  // readings are in the order of their sequences
  for (const Reading& reading : readings_) {
    if (!lost[reading.lease] || last == reading.sequence) continue;
    last = reading.sequence;
    ++num_lost;
  }
  return num_lost == sequences_.size();
}

}  // namespace swiftcache::engine::exec
