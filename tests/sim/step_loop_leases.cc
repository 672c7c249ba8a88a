// SPDX-License-Identifier: Apache-2.0
// The half of StepLoop that hears of leases: what engine/exec's Lending and Borrowing do for an engine.
#include <algorithm>
#include <iterator>
#include <utility>

#include "tests/sim/step_loop.h"

namespace swiftcache::sim {

using engine::coordinator::ClearMessage;
using engine::coordinator::DrainMessage;
using engine::coordinator::LoseMessage;
using engine::coordinator::StoredMessage;
using engine::coordinator::TakeBackMessage;
using engine::coordinator::UseMessage;

namespace {

constexpr int64_t kRunning = 3;  // of the last sequences; what others hold is a cache

}  // namespace

bool StepLoop::BeginReads() {
  std::vector<LeaseId> unread, held;
  for (const auto& [id, region] : regions_) {
    if (!IsInReadings(id)) (IsRunThere(id) ? held : unread).push_back(id);
  }
  in_step_ = coordinator_.step_reads().Begin(std::move(unread), std::move(held));
  return in_step_;
}

// What the coordinator gave back meanwhile is forgotten before anything else.
void StepLoop::EndReads() {
  in_step_ = false;
  for (const LeaseId id : coordinator_.step_reads().End()) {
    ++tally_.unread;
    Forget(id);
    coordinator_.Dropped(id);
  }
}

bool StepLoop::IsRunThere(LeaseId id) const {
  const auto first = sequences_.end() - std::min<int64_t>(kRunning, static_cast<int64_t>(sequences_.size()));
  return std::any_of(first, sequences_.end(), [&](const Sequence& sequence) {
    return std::any_of(sequence.blocks.begin(), sequence.blocks.end(),
                       [&](const Block& block) { return block.remote.has_value() && block.remote->lease == id; });
  });
}

// As if nobody had used it for long.
void StepLoop::GiveBackSome() {
  if (quiet_ || options_.calm || regions_.empty() || !sim_.random.Chance(0.004)) return;
  const auto& [id, region] = *std::next(regions_.begin(), sim_.random.Below(num_regions()));
  if (!region.draining) coordinator_.GiveBack(id);
}

void StepLoop::Do(const TakeBackMessage& message) {
  const engine::lease::Extent& extent = message.extent;
  for (int64_t block = extent.first_block; block < extent.first_block + extent.num_blocks; ++block) {
    if (away_[block] != message.id.value()) continue;
    away_[block] = 0;
    Scrub(block);
  }
}

void StepLoop::Do(const UseMessage& message) {
  if (!coordinator_.step_reads().Accept(message.id)) return coordinator_.Dropped(message.id);
  regions_[message.id] = {.used = std::vector<bool>(message.num_blocks)};
}

void StepLoop::Do(const ClearMessage& message) {
  const engine::lease::Extent& extent = message.extent;
  const auto inside = [&](int64_t block) {
    return block >= extent.first_block && block < extent.first_block + extent.num_blocks;
  };
  bool ok = extent.first_block + extent.num_blocks <= options_.num_blocks && !sim_.random.Chance(0.05);
  for (int64_t block = 0; block < options_.num_blocks; ++block) {
    if (inside(block) && away_[block] != 0 && options_.bug != PlantedBug::kLeaseTwice) ok = false;
  }
  if (unwanted_.erase(message.id) > 0 || !ok) return coordinator_.Cleared(message.id, false);
  for (int64_t block = extent.first_block; block < extent.first_block + extent.num_blocks; ++block) {
    away_[block] = message.id.value();
  }
  for (Sequence& sequence : sequences_) {
    for (size_t i = 0; i < sequence.blocks.size(); ++i) {
      Block& block = sequence.blocks[i];
      if (!block.local.has_value() || !inside(*block.local)) continue;
      in_use_[*block.local] = false;
      block.local = TakeLocal();
      if (block.local.has_value()) WriteLocal(*block.local, sequence.id, static_cast<int64_t>(i));
    }
  }
  coordinator_.Cleared(message.id, true);
}

void StepLoop::Do(const DrainMessage& message) {
  coordinator_.step_reads().Handled(message.id);
  const auto it = regions_.find(message.id);
  if (it == regions_.end()) return coordinator_.Drained(message.id);
  if (std::exchange(it->second.draining, true)) return;
  MoveOut(message.id);
}

// What lies in the region goes back to own memory as far as there is room; the rest is computed again.
void StepLoop::MoveOut(LeaseId id) {
  const View* view = channels_.Find(id);
  for (Sequence& sequence : sequences_) {
    for (size_t i = 0; i < sequence.blocks.size(); ++i) {
      Block& block = sequence.blocks[i];
      if (!block.remote.has_value() || block.remote->lease != id) continue;
      const Slot from = *std::exchange(block.remote, std::nullopt);
      const std::optional<int64_t> local = TakeLocal();
      if (!local.has_value()) continue;
      std::vector<uint64_t> values;
      for (int64_t c = 0; c < options_.cells_per_block; ++c) {
        values.push_back(view->Read(from.index * options_.cells_per_block + c));
      }
      if (!view->Holds() && options_.bug != PlantedBug::kMovesUnchecked) {
        in_use_[*local] = false;
        continue;
      }
      ++tally_.moved_back;
      std::copy(values.begin(), values.end(), channels_.memory().cells.begin() + *local * options_.cells_per_block);
      block.local = local;
    }
  }
}

void StepLoop::FinishDrains() {
  for (auto it = regions_.begin(); it != regions_.end();) {
    const LeaseId id = it->first;
    const bool done = it->second.draining && it->second.stores == 0;
    it = done ? regions_.erase(it) : std::next(it);
    if (done) coordinator_.Drained(id);
  }
}

void StepLoop::Do(const LoseMessage& message) {
  Forget(message.id);
  coordinator_.Dropped(message.id);
}

// Its memory is another's.
void StepLoop::Forget(LeaseId id) {
  for (Sequence& sequence : sequences_) {
    for (Block& block : sequence.blocks) {
      if (block.remote.has_value() && block.remote->lease == id) block.remote.reset();
      if (block.store.has_value() && transfers_.at(*block.store).slot.lease == id) block.store.reset();
    }
  }
  regions_.erase(id);
  std::erase_if(transfers_, [&](const auto& transfer) { return transfer.second.slot.lease == id; });
}

void StepLoop::Do(const StoredMessage& message) {
  const int64_t ticket = message.ticket.value();
  const bool ok = message.status.ok();
  const auto it = transfers_.find(ticket);
  if (it == transfers_.end()) return;
  const Transfer transfer = it->second;
  transfers_.erase(it);
  Region& region = regions_.at(transfer.slot.lease);
  --region.stores;
  Sequence* sequence = FindSequence(transfer.sequence);
  Block* block = sequence == nullptr ? nullptr : &sequence->blocks[transfer.block];
  const bool awaited = block != nullptr && block->store == ticket;
  if (awaited) block->store.reset();
  if (ok && awaited && block->local.has_value() && !region.draining) {
    in_use_[*std::exchange(block->local, std::nullopt)] = false;
    block->remote = transfer.slot;
    return;
  }
  FreeSlot(transfer.slot);
  if (!ok && !region.draining) coordinator_.StoreFailed(transfer.slot.lease, message.status);
}

}  // namespace swiftcache::sim
