// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/step_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace swiftcache::sim {

using engine::lease::Extent;
using engine::lease::Lease;

StepLoop::StepLoop(Simulator& sim, Process& process, LeaseChannels& channels, Tally& tally, LoopEvents& events,
                   const Options& options)
    : sim_(sim),
      process_(process),
      channels_(channels),
      tally_(tally),
      events_(events),
      options_(options),
      away_(options.num_blocks),
      in_use_(options.num_blocks) {}

void StepLoop::Start() {
  ChooseTarget();
  process_.After(sim_.random.Below(2'000), [this] { BeginStep(); });
}

void StepLoop::Clear(const Lease& lease) {
  inbox_.push_back([this, lease] { DoClear(lease); });
}
void StepLoop::TakeBack(LeaseId id, const Extent& extent) {
  inbox_.push_back([this, id, extent] {
    for (int64_t block = extent.first_block; block < extent.first_block + extent.num_blocks; ++block) {
      if (away_[block] != id.value()) continue;
      away_[block] = 0;
      Write(block, [](int64_t) { return 0; });  // scrubbed
    }
  });
}
void StepLoop::Use(const Lease& lease) {
  inbox_.push_back(
      [this, lease] { regions_[lease.id] = {.lease = lease, .used = std::vector<bool>(lease.borrower_blocks)}; });
}
void StepLoop::Drain(LeaseId id) {
  inbox_.push_back([this, id] { DoDrain(id); });
}
void StepLoop::Lose(LeaseId id) {
  inbox_.push_back([this, id] { DoLose(id); });
}
void StepLoop::Stored(int64_t ticket, bool ok) {
  inbox_.push_back([this, ticket, ok] { DoStored(ticket, ok); });
}

void StepLoop::BeginStep() {
  HandleMessages();
  Work();
  BeginReading();
  const Micros longer = options_.long_steps && sim_.random.Chance(0.02) ? sim_.random.Below(80'000) : 0;
  const Micros step = sim_.random.Between(1'000, 8'000) + longer + std::exchange(hang_, 0);
  if (!readings_.empty()) {
    process_.After(step / 2, [this] {
      for (Reading& reading : readings_) ReadCells(reading, 0, (options_.cells_per_block + 1) / 2);
    });
  }
  process_.After(step, [this] { EndStep(); });
}

void StepLoop::EndStep() {
  FinishReading();
  process_.After(sim_.random.Between(200, 20'000), [this] { BeginStep(); });
}

void StepLoop::HandleMessages() {
  for (const auto& message : std::exchange(inbox_, {})) message();
  FinishDrains();
}

void StepLoop::ChooseTarget() { target_blocks_ = sim_.random.Between(options_.least_wanted, options_.most_wanted); }

void StepLoop::Quiesce() {
  quiet_ = true;
  target_blocks_ = std::min(target_blocks_, used_blocks());
}

void StepLoop::Work() {
  if (!quiet_ && sim_.random.Chance(0.015)) ChooseTarget();
  Recompute();
  while (total_blocks() > target_blocks_) EndOneSequence();
  if (sim_.random.Chance(0.05)) EndOneSequence();
  for (int64_t i = sim_.random.Below(4); i > 0 && total_blocks() < target_blocks_; --i) Grow();
  Spill();
}

int64_t StepLoop::total_blocks() const {
  int64_t blocks = 0;
  for (const Sequence& sequence : sequences_) blocks += static_cast<int64_t>(sequence.blocks.size());
  return blocks;
}

int64_t StepLoop::used_blocks() const { return std::count(in_use_.begin(), in_use_.end(), true); }

std::optional<int64_t> StepLoop::TakeLocal() {
  for (int64_t block = 0; block < options_.num_blocks; ++block) {
    if (away_[block] != 0 || in_use_[block]) continue;
    in_use_[block] = true;
    return block;
  }
  return std::nullopt;
}

uint64_t StepLoop::Expected(int64_t sequence, int64_t block, int64_t cell) const {
  return KvValue(options_.engine_life, sequence, block, cell);
}

// New KV is written where it is computed: in own memory.
void StepLoop::WriteLocal(int64_t local, int64_t sequence, int64_t block) {
  Write(local, [&](int64_t cell) { return Expected(sequence, block, cell); });
}

template <typename ValueOf>
void StepLoop::Write(int64_t local, const ValueOf& value_of) {
  for (int64_t i = 0; i < options_.cells_per_block; ++i) {
    const int64_t cell = local * options_.cells_per_block + i;
    if (const int64_t lease = channels_.grant_of(cell); lease != 0) {
      sim_.Fail(absl::StrCat("engine life ", options_.engine_life, " writes own KV into cell ", cell,
                             ", which it has granted to lease ", lease));
    }
    channels_.memory().cells[cell] = value_of(i);
  }
}

void StepLoop::Grow() {
  const std::optional<int64_t> local = TakeLocal();
  if (!local.has_value()) {
    const int64_t lent = std::count_if(away_.begin(), away_.end(), [](int64_t lease) { return lease != 0; });
    if (lent > 0) events_.OnNeedsOwn(std::min<int64_t>(lent, sim_.random.Between(1, 6)));
    return events_.OnWantsMemory(target_blocks_ - total_blocks());
  }
  if (sequences_.empty() || sequences_.back().blocks.size() >= 6) sequences_.push_back({.id = ++last_sequence_});
  Sequence& sequence = sequences_.back();
  WriteLocal(*local, sequence.id, static_cast<int64_t>(sequence.blocks.size()));
  sequence.blocks.push_back({.local = *local});
}

// What was lost is computed again from its tokens.
void StepLoop::Recompute() {
  for (Sequence& sequence : sequences_) {
    for (size_t i = 0; i < sequence.blocks.size(); ++i) {
      Block& block = sequence.blocks[i];
      if (block.local.has_value() || block.remote.has_value()) continue;
      block.local = TakeLocal();
      if (!block.local.has_value()) return;
      WriteLocal(*block.local, sequence.id, static_cast<int64_t>(i));
    }
  }
}

// Old blocks go to leases while own memory is short.
void StepLoop::Spill() {
  if (used_blocks() * 2 < options_.num_blocks) return;
  int64_t left = 4;
  for (auto& [id, region] : regions_) {
    if (region.draining || channels_.Find(id) == nullptr) continue;
    for (Sequence& sequence : sequences_) {
      for (size_t i = 0; i < sequence.blocks.size() && left > 0; ++i) {
        Block& block = sequence.blocks[i];
        const auto free = std::find(region.used.begin(), region.used.end(), false);
        if (free == region.used.end()) break;
        if (!block.local.has_value() || block.store.has_value()) continue;
        *free = true;
        --left;
        const Slot slot{id, free - region.used.begin()};
        const auto from = channels_.memory().cells.begin() + *block.local * options_.cells_per_block;
        block.store =
            channels_.Store(id, slot.index * options_.cells_per_block, {from, from + options_.cells_per_block});
        transfers_[*block.store] = {sequence.id, static_cast<int64_t>(i), slot};
        ++region.stores;
      }
    }
  }
}

void StepLoop::EndOneSequence() {
  if (sequences_.empty()) return;
  Sequence& sequence = sequences_.front();
  for (Block& block : sequence.blocks) FreeBlock(block);
  sequences_.pop_front();
}

void StepLoop::FreeBlock(Block& block) {
  if (block.local.has_value()) in_use_[*block.local] = false;
  if (block.remote.has_value()) FreeSlot(*block.remote);
  block = {};  // a store under way finds nobody and frees its slot then
}

void StepLoop::FreeSlot(const Slot& slot) {
  const auto it = regions_.find(slot.lease);
  if (it != regions_.end()) it->second.used[slot.index] = false;
}

StepLoop::Sequence* StepLoop::FindSequence(int64_t id) {
  for (Sequence& sequence : sequences_) {
    if (sequence.id == id) return &sequence;
  }
  return nullptr;
}

void StepLoop::BeginReading() {
  if (sequences_.empty()) return;
  for (int64_t i = sim_.random.Between(0, 2); i > 0; --i) {
    const Sequence& sequence = sequences_[sim_.random.Below(static_cast<int64_t>(sequences_.size()))];
    for (size_t b = 0; b < sequence.blocks.size(); ++b) {
      const Block& block = sequence.blocks[b];
      if (!block.local.has_value() && !block.remote.has_value()) continue;
      Reading reading{.sequence = sequence.id, .block = static_cast<int64_t>(b), .slot = block.remote};
      if (reading.slot.has_value()) {
        const View* view = channels_.Find(reading.slot->lease);
        if (view == nullptr)
          return sim_.Fail(absl::StrCat("a step uses lease ", reading.slot->lease.value(), ", unmapped"));
        reading.held = view->Holds();
      }
      readings_.push_back(std::move(reading));
    }
  }
}

void StepLoop::ReadCells(Reading& reading, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t per_block = options_.cells_per_block;
    if (reading.slot.has_value()) {
      const View* view = channels_.Find(reading.slot->lease);
      if (view == nullptr)
        return sim_.Fail(absl::StrCat("a step reads lease ", reading.slot->lease.value(), ", unmapped"));
      reading.values.push_back(view->Read(reading.slot->index * per_block + i));
    } else {
      const Sequence* sequence = FindSequence(reading.sequence);
      reading.values.push_back(channels_.memory().cells[*sequence->blocks[reading.block].local * per_block + i]);
    }
  }
}

void StepLoop::FinishReading() {
  for (Reading& reading : readings_) {
    ReadCells(reading, (options_.cells_per_block + 1) / 2, options_.cells_per_block);
    if (sim_.failed()) return;
    if (reading.slot.has_value()) {
      const bool looks_again = options_.bug != PlantedBug::kOnlyFirstCheck;
      const bool held = reading.held && (!looks_again || channels_.Find(reading.slot->lease)->Holds());
      ++(held ? tally_.remote_reads : tally_.remote_reads_failed);
      if (!held) events_.OnGenerationChanged(reading.slot->lease);
      if (!held && options_.bug != PlantedBug::kNoGenerationCheck) continue;  // it is computed again
    } else {
      ++tally_.local_reads;
    }
    for (int64_t cell = 0; cell < options_.cells_per_block; ++cell) {
      if (reading.values[cell] != Expected(reading.sequence, reading.block, cell)) {
        return Wrong(reading, cell, reading.values[cell]);
      }
    }
  }
  readings_.clear();
}

void StepLoop::Wrong(const Reading& reading, int64_t cell, uint64_t found) {
  const std::string where =
      reading.slot.has_value() ? absl::StrCat("lease ", reading.slot->lease.value()) : std::string("own memory");
  sim_.Fail(absl::StrCat("wrong KV reaches a token: engine life ", options_.engine_life, " reads sequence ",
                         reading.sequence, " block ", reading.block, " cell ", cell, " from ", where, " and finds ",
                         found));
}

void StepLoop::DoClear(const Lease& lease) {
  const Extent& extent = lease.extent;
  const auto inside = [&](int64_t block) {
    return block >= extent.first_block && block < extent.first_block + extent.num_blocks;
  };
  bool ok = extent.first_block + extent.num_blocks <= options_.num_blocks && !sim_.random.Chance(0.05);
  for (int64_t block = 0; block < options_.num_blocks; ++block) {
    if (inside(block) && away_[block] != 0 && options_.bug != PlantedBug::kLeaseTwice) ok = false;
  }
  if (unwanted_.erase(lease.id) > 0 || !ok) return events_.OnCleared(lease.id, false);
  for (int64_t block = extent.first_block; block < extent.first_block + extent.num_blocks; ++block) {
    away_[block] = lease.id.value();
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
  events_.OnCleared(lease.id, true);
}

void StepLoop::DoDrain(LeaseId id) {
  const auto it = regions_.find(id);
  if (it == regions_.end()) return;
  it->second.draining = true;
  MoveOut(it->second);
}

// What lies in the region goes back to own memory as far as there is room; the rest is computed again.
void StepLoop::MoveOut(Region& region) {
  const View* view = channels_.Find(region.lease.id);
  for (Sequence& sequence : sequences_) {
    for (size_t i = 0; i < sequence.blocks.size(); ++i) {
      Block& block = sequence.blocks[i];
      if (!block.remote.has_value() || block.remote->lease != region.lease.id) continue;
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
    if (done) events_.OnDrained(id);
  }
}

void StepLoop::DoLose(LeaseId id) {
  ForgetBlocksOf(id);
  regions_.erase(id);
  std::erase_if(transfers_, [&](const auto& transfer) { return transfer.second.slot.lease == id; });
  events_.OnDropped(id);
}

void StepLoop::ForgetBlocksOf(LeaseId id) {
  for (Sequence& sequence : sequences_) {
    for (Block& block : sequence.blocks) {
      if (block.remote.has_value() && block.remote->lease == id) block.remote.reset();
      if (block.store.has_value() && transfers_.at(*block.store).slot.lease == id) block.store.reset();
    }
  }
}

void StepLoop::DoStored(int64_t ticket, bool ok) {
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
  if (!ok) events_.OnGenerationChanged(transfer.slot.lease);
}

bool StepLoop::InUse(LeaseId id) const {
  const bool read = std::any_of(readings_.begin(), readings_.end(), [&](const Reading& reading) {
    return reading.slot.has_value() && reading.slot->lease == id;
  });
  return read || regions_.contains(id);
}

}  // namespace swiftcache::sim
