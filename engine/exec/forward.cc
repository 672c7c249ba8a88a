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

absl::StatusOr<Forward::Outcome> Forward::Run(bool may_cut_short) {
  may_cut_short_ = may_cut_short;
  if (!streamed_.empty()) leases_->streamer->Start(own_->last_change());
  progress_.fetch_add(1, std::memory_order_relaxed);
  begin_ = leases_ ? leases_->clock->Now() : absl::InfinitePast();
  first_layer_ = -1;
  in_place_bytes_ = 0;
  models::ForwardResult result;
  const models::ForwardBatch batch{.token_ids = token_ids_,
                                   .sequences = sequences_,
                                   .streamed = streamed_,
                                   .checks = checks_,
                                   .logit_rows = logit_rows_,
                                   .samples = samples_,
                                   .first_piece = kept_pieces_};
  own_->NoteStep(model_->Run(batch, this, result));
  own_->last_change().Wait();
  kept_pieces_ = 0;
  const absl::Status status = result.status;
  const int64_t pieces = result.pieces;
  Outcome outcome = Conclude(std::move(result));
  if (!status.ok()) return status;
  outcome.cut_for_what_it_reads =
      outcome.cut_short && (!outcome.lost.empty() || leases_->urgency->Concerns(lease_ids_));
  outcome.goes_on = batch.first_piece > 0;
  outcome.is_kept = outcome.cut_short && outcome.lost.empty() && computes_at_once_;
  if (outcome.is_kept) kept_pieces_ = pieces;
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
  num_blocks_ = 0;
  sequences_.clear();
  streamed_.clear();
  logit_rows_.clear();
  samples_.clear();
  read_of_.clear();
  reads_.clear();
  lease_ids_.clear();
  readings_.clear();
  if (leases_ && leases_->streamer != nullptr) leases_->streamer->Begin(goes_on() ? num_layers() - layers_left_ : 0);
  for (const sched::Chunk& chunk : plan.chunks) {
    Continuation& continuation = AsContinuation(*chunk.sequence);
    continuation.tokens.AppendTo(token_ids_, continuation.computed_tokens, chunk.num_tokens);
    const std::span<const backend::DeviceAddress> blocks = GatherBlocks(continuation);
    num_blocks_ += static_cast<int64_t>(blocks.size());
    sequences_.push_back(
        {.num_rows = chunk.num_tokens, .context_tokens = continuation.computed_tokens, .blocks = blocks});
    if (chunk.samples) GatherSample(continuation);
  }
  GatherChecks();
}

// From the last row gathered.
void Forward::GatherSample(const Continuation& continuation) {
  const int64_t position = continuation.tokens.size();
  samples_.push_back(backend::SampleRowOf(static_cast<int64_t>(logit_rows_.size()), continuation.sampling, position));
  logit_rows_.push_back(static_cast<int32_t>(token_ids_.size()) - 1);
}

std::span<const backend::DeviceAddress> Forward::GatherBlocks(Continuation& continuation) {
  BlockAddresses& addresses = continuation.addresses;
  addresses.Follow(*cache_, continuation.blocks, [this](kv::Place place) { return AddressOf(place); });
  for (const auto& [region, blocks] : addresses.by_lease()) NoteReader(region).in_place_blocks += blocks;
  if (leases_ && leases_->streamer != nullptr) Stream(continuation.blocks, addresses);
  return addresses.all();
}

// Of nothing, where it lies in a lease that is not mapped.
backend::DeviceAddress Forward::AddressOf(kv::Place place) const {
  if (place.local()) return own_->At(place.index);
  const backend::DeviceAddress base = leases_->borrowing->RegionOf(place.region).view.base;
  return base ? base + place.index * own_->block_bytes() : base;
}

// What lies in leases that are streamed is read in the slots while there are some, all else where it lies.
void Forward::Stream(const kv::BlockTable& table, BlockAddresses& addresses) {
  int64_t left = addresses.num_leased();
  for (int64_t i = 0; left > 0; ++i) {
    const kv::Place place = addresses.place(i);
    if (place.local()) continue;
    --left;
    LeaseRead& read = reads_[read_of_.at(place.region)];
    std::optional<LayerStreamer::Slots> slots;
    if (leases_->borrowing->Streams(read.view)) {
      slots = leases_->streamer->Add(cache_->filling(table[i]), read.lease, place.index * own_->block_bytes());
    }
    addresses.Set(i, slots ? backend::DeviceAddress() : AddressOf(place));
    if (slots) {
      streamed_.push_back({num_blocks_ + i, {(*slots)[0], (*slots)[1]}});
      --read.in_place_blocks;
    }
  }
}

// The sequence being gathered reads the region.
Forward::LeaseRead& Forward::NoteReader(kv::RegionId region) {
  const auto [it, is_new] = read_of_.try_emplace(region, reads_.size());
  if (is_new) {
    const LeasedRegion& leased = leases_->borrowing->RegionOf(region);
    reads_.push_back({leased.lease, leased.view});
    lease_ids_.push_back(leased.lease);
  }
  readings_.push_back({sequences_.size(), it->second});
  return reads_[it->second];
}

void Forward::GatherChecks() {
  checks_.clear();
  checked_.clear();
  for (size_t i = 0; i < reads_.size(); ++i) {
    if (reads_[i].in_place_blocks == 0) continue;
    CHECK(reads_[i].view.base) << "a block of a lease that is not mapped has no slot";  // KvCache::SetStreamCapacity
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
    const int64_t bytes = reads_[i].in_place_blocks * own_->block_bytes() / num_layers();
    reads_[i].view.NoteRead(bytes);
    in_place_bytes_ += bytes;
  }
  NotePace(layer);
  computes_at_once_ = read.state() == nullptr;
  return !IsTooLate() && !AllLost();
}

void Forward::NotePace(int64_t layer) {
  const absl::Time now = leases_->clock->Now();
  if (first_layer_ < 0) {
    first_layer_ = layer;
    first_read_ = now;
  }
  of_a_layer_ = layer == first_layer_ ? now - begin_ : (now - first_read_) / (layer - first_layer_);
  layers_left_ = num_layers() - layer - 1;
}

// True where a lease is due before the rest of the step will be done, at the pace so far or half as slow again.
bool Forward::IsTooLate() const {
  if (!may_cut_short_ || layers_left_ == 0) return false;
  const absl::Time due = Due();
  return due != absl::InfiniteFuture() && leases_->clock->Now() + of_a_layer_ * layers_left_ * 3 / 2 > due;
}

absl::Time Forward::Due() const {
  const absl::Time due = leases_->urgency->Earliest(lease_ids_);
  if (leases_->urgency->empty()) return due;
  return std::min(due, leases_->urgency->Earliest(leases_->borrowing->WorthCutting()));
}

bool Forward::AllLost() const {
  if (reads_.empty()) return false;
  std::vector<bool> lost;  // none of them: empty
  const auto note = [&](size_t i) {
    lost.resize(reads_.size());
    lost[i] = true;
  };
  for (const size_t i : checked_) {
    if (!reads_[i].view.Holds()) note(i);
  }
  if (!streamed_.empty()) {
    for (const kv::LeaseId lease : leases_->streamer->Lost()) {
      note(std::find(lease_ids_.begin(), lease_ids_.end(), lease) - lease_ids_.begin());
    }
  }
  if (lost.empty()) return false;
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
