// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/borrowing.h"

#include <algorithm>
#include <utility>

#include "engine/kv/layer_stream.h"

namespace swiftcache::engine::exec {

using coordinator::DrainMessage;
using coordinator::LendableMessage;
using coordinator::LoseMessage;
using coordinator::StoredMessage;
using coordinator::UseMessage;

namespace {

constexpr int64_t kWishDivisor = 4;  // at least this part of own and of leased memory is asked for

}  // namespace

Borrowing::Borrowing(const Options& options, const Dependencies& parts)
    : options_(options),
      parts_(parts),
      copies_(options.revoke_deadline,
              {&regions_, parts.own, parts.cache, parts.transport, parts.coordinator, parts.clock}),
      departures_({.revoke_deadline = options.revoke_deadline, .leases_are_mapped = parts.transport->maps()},
                  {&regions_, &copies_, parts.own, parts.cache, parts.scheduler, parts.coordinator, parts.urgency,
                   parts.clock}),
      use_({&regions_, parts.cache, parts.scheduler, parts.coordinator, parts.clock}) {}

void Borrowing::Do(const UseMessage& message) {
  if (!parts_.coordinator->step_reads().Accept(message.id)) return parts_.coordinator->Dropped(message.id);
  const kv::RegionId region = parts_.cache->AddRegion(message.num_blocks, message.donor);
  regions_.Add({.lease = message.id,
                .region = region,
                .donor = message.donor,
                .view = message.view,
                .last_use = parts_.clock->Now()});
  use_.Added();
  lendable_blocks_ = std::max<int64_t>(0, lendable_blocks_ - message.num_blocks);  // it was offered
  need_is_refused_ = false;
  UpdatePotential();
}

void Borrowing::Do(const DrainMessage& message) { departures_.Begin(message); }

void Borrowing::Do(const LoseMessage& message) { departures_.Lose(message.id); }

void Borrowing::Do(const StoredMessage& message) { copies_.Ended(message.ticket, message.status); }

void Borrowing::Do(const LendableMessage& message) {
  lendable_blocks_ = message.bytes / parts_.own->block_bytes();
  need_is_refused_ &= message.bytes == 0;
  if (message.bytes == 0 && message.for_need) NoteRefusal();
  shortage_ = message.shortage;
  if (message.bytes == 0) departures_.NoRoom();  // nor is anything on its way
  UpdatePotential();
}

void Borrowing::NoteRefusal() {
  ++needs_refused_;
  need_is_refused_ = true;
}

int64_t Borrowing::streamed_blocks() const {
  if (!leases_are_mapped()) return std::min(parts_.cache->leased_in().total, most_streamed_blocks());
  if (options_.streams_all) return parts_.cache->leased_in().total;
  int64_t blocks = 0;
  for (const auto& [id, region] : regions_) {
    if (Streams(region.view)) blocks += parts_.cache->region(id).total;
  }
  return blocks;
}

// Each block more on lease takes some of the own memory for the slots through which it is streamed; of what may come, where
// links are measured, it is not known whether it will.
void Borrowing::UpdatePotential() {
  int64_t leased = parts_.cache->leased_in().total + lendable_blocks_;
  if (!leases_are_mapped()) {
    leased =
        std::min({leased, kv::StreamedBlocks(StreamBlocks(leased), options_.streamed_layers), most_streamed_blocks()});
  }
  const int64_t streamed = options_.streams_all ? leased : streamed_blocks();
  parts_.cache->SetPotentialRegionBlocks(leased, StreamBlocks(streamed), lendable_blocks_);
}

int64_t Borrowing::StreamBlocks(int64_t leased_blocks) const {
  if (options_.streamed_layers == 0) return 0;
  return kv::StreamBlocksFor(options_.num_blocks, leased_blocks, options_.streamed_layers);
}

void Borrowing::FinishRegions() {
  const Departures::Gone gone = departures_.Finish();
  if (gone.blocks() == 0) return;
  lendable_blocks_ += gone.given_back;  // as far as is known
  need_is_refused_ = false;
  if (gone.taken > 0) taken_.Note(gone.taken, parts_.clock->Now());
  UpdatePotential();
}

// What copies under way read is read as long as the step, since their end is not heard of before.
bool Borrowing::BeginReads(std::span<const kv::LeaseId> leases, const Stake& stake) {
  const absl::flat_hash_set<kv::LeaseId> read(leases.begin(), leases.end());
  const absl::flat_hash_set<kv::LeaseId> copied = copies_.LeasesRead();
  std::vector<kv::LeaseId> unread, held;
  worth_cutting_.clear();
  worth_cutting_copied_.clear();
  const bool stores_flow = copies_.StoresFlow();
  for (const auto& [region, leased] : regions_) {
    const lease::Departure& departure = leased.departure;
    if (read.contains(leased.lease) || departure.lost()) continue;
    const int64_t used = parts_.cache->region(region).used;
    const bool may_save = stores_flow && !departure.draining() && !departure.given_back();
    const int64_t idle = may_save ? parts_.cache->WorthSaving(region) : 0;
    const bool worth_cutting =
        (used > 0 && stake.leaves_out_readers) || (used + idle) * options_.block_tokens > stake.tokens;
    if (copied.contains(leased.lease)) {
      if (worth_cutting && departure.in_use()) worth_cutting_copied_.push_back(leased.lease);
      continue;
    }
    if (worth_cutting) worth_cutting_.insert(leased.lease);
    (used > 0 || worth_cutting ? held : unread).push_back(leased.lease);
  }
  return parts_.coordinator->step_reads().Begin(std::move(unread), std::move(held));
}

std::vector<kv::LeaseId> Borrowing::WorthCutting() const {
  std::vector<kv::LeaseId> held = parts_.coordinator->step_reads().Held();
  std::erase_if(held, [this](kv::LeaseId lease) { return !worth_cutting_.contains(lease); });
  held.insert(held.end(), worth_cutting_copied_.begin(), worth_cutting_copied_.end());
  return held;
}

// The step's own losses first: what comes home meanwhile is no longer where its readers were.
void Borrowing::EndReads(const std::vector<kv::LeaseId>& lost) {
  const std::vector<kv::LeaseId> taken = parts_.coordinator->step_reads().End();
  departures_.NoteLost(lost);
  for (const kv::LeaseId lease : taken) departures_.Lose(lease);
  if (!taken.empty()) FinishRegions();
}

// --- wishes

void Borrowing::Advance(int64_t waiting_tokens) {
  (void)LeaveSilentDonors();
  use_.Look();
  if (!WishesWait()) copies_.StartWished();
  AskForMemory(waiting_tokens);
}

// For what is being saved; for no longer than a revocation takes, or donors that go on revoking would let nobody have
// the room that spills are to make.
bool Borrowing::WishesWait() {
  const bool wait = wishes_wait_.Goes(saves_blocks(), parts_.clock->Now(), options_.revoke_deadline);
  if (!wait) wishes_wait_.End();
  return wait;
}

absl::Time Borrowing::NextWakeup() const {
  return std::min({use_.next_look(), copies_.silent_at(), departures_.next_change()});
}

void Borrowing::AskForMemory(int64_t waiting_tokens) {
  const int64_t taken = taken_.blocks(parts_.clock->Now());
  int64_t blocks = std::max(parts_.cache->TakeLeaseWish(/*margin=*/taken), departures_.homeless_blocks());
  if (blocks == 0) return;
  // Who needs a little will need more: leases grow by steps, so that they stay few.
  blocks = std::max({blocks, options_.num_blocks / kWishDivisor, parts_.cache->leased_in().total / kWishDivisor});
  if (!leases_are_mapped()) blocks = std::min(blocks, most_streamed_blocks() - parts_.cache->leased_in().total);
  if (blocks <= 0) {  // nothing could be put there; where slots are still to come, more can be soon
    const auto slots = static_cast<int64_t>(parts_.cache->reserved().size());
    if (waiting_tokens > 0 && slots >= StreamBlocks(streamed_blocks())) NoteRefusal();
    return;
  }
  parts_.coordinator->WishForMemory(blocks * parts_.own->block_bytes(), waiting_tokens);
}

}  // namespace swiftcache::engine::exec
