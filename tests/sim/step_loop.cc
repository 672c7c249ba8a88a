// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/step_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace swiftcache::sim {

StepLoop::StepLoop(Simulator& sim, Process& process, LeaseChannels& channels,
                   engine::coordinator::Coordinator& coordinator, NeedWatch& needs, Tally& tally,
                   const Options& options)
    : sim_(sim),
      process_(process),
      channels_(channels),
      coordinator_(coordinator),
      needs_(needs),
      tally_(tally),
      options_(options),
      away_(options.num_blocks),
      in_use_(options.num_blocks) {}

void StepLoop::Start() {
  ChooseTarget();
  process_.After(sim_.random.Below(2'000), [this] { BeginStep(); });
}

void StepLoop::BeginStep() {
  HandleMessages();
  Work();
  ChooseReadings();
  if (sim_.random.Chance(0.7)) return Compute();
  process_.After(sim_.random.Below(300), [this] { Compute(); });  // plans take their time
}

void StepLoop::Compute() {
  if (!BeginReads()) {
    readings_.clear();
    return BeginStep();
  }
  const Micros longer = !options_.calm && sim_.random.Chance(0.02) ? sim_.random.Below(80'000) : 0;
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
  EndReads();
  process_.After(sim_.random.Between(200, 20'000), [this] { BeginStep(); });
}

void StepLoop::HandleMessages() {
  for (const engine::coordinator::LoopMessage& message : std::exchange(inbox_, {})) {
    std::visit([this](const auto& m) { Do(m); }, message);
  }
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
  if (num_away() > 0 && sim_.random.Chance(0.01)) NeedBack(sim_.random.Between(1, num_away()));
  for (int64_t i = sim_.random.Below(4); i > 0 && total_blocks() < target_blocks_; --i) Grow();
  Spill();
  GiveBackSome();
}

int64_t StepLoop::total_blocks() const {
  int64_t blocks = 0;
  for (const Sequence& sequence : sequences_) blocks += static_cast<int64_t>(sequence.blocks.size());
  return blocks;
}

int64_t StepLoop::used_blocks() const { return std::count(in_use_.begin(), in_use_.end(), true); }

int64_t StepLoop::num_away() const {
  return std::count_if(away_.begin(), away_.end(), [](int64_t lease) { return lease != 0; });
}

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

void StepLoop::Scrub(int64_t local) {
  Write(local, [](int64_t) { return 0; });
}

void StepLoop::Grow() {
  const std::optional<int64_t> local = TakeLocal();
  if (!local.has_value()) {
    if (const int64_t lent = num_away(); lent > 0) NeedBack(std::min(lent, sim_.random.Between(1, 6)));
    return WishForMemory(target_blocks_ - total_blocks());
  }
  if (sequences_.empty() || sequences_.back().blocks.size() >= 6) sequences_.push_back({.id = ++last_sequence_});
  Sequence& sequence = sequences_.back();
  WriteLocal(*local, sequence.id, static_cast<int64_t>(sequence.blocks.size()));
  sequence.blocks.push_back({.local = *local});
}

void StepLoop::NeedBack(int64_t blocks) {
  const int64_t lent = num_away();
  if (quiet_ || options_.calm || lent == 0 || sim_.now() < next_need_) return;
  next_need_ = sim_.now() + sim_.random.Between(1'000, 60'000);
  ++tally_.own_needs;
  int64_t unheard = 0;
  for (const engine::coordinator::LoopMessage& message : inbox_) {
    const auto* back = std::get_if<engine::coordinator::TakeBackMessage>(&message);
    if (back != nullptr) unheard += back->extent.num_blocks;
  }
  needs_.Need(blocks, lent, unheard);
  const int64_t miscounted = options_.bug == PlantedBug::kMiscountsLent ? sim_.random.Below(3) : 0;
  coordinator_.NeedBack(blocks, lent + miscounted);
}

void StepLoop::WishForMemory(int64_t blocks) {
  if (quiet_ || !options_.borrows) return;
  coordinator_.WishForMemory(blocks * options_.cells_per_block * kCellBytes, /*waiting_tokens=*/blocks * 16);
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
            channels_.StoreCells(id, slot.index * options_.cells_per_block, {from, from + options_.cells_per_block});
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

void StepLoop::ChooseReadings() {
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
      if (!held) coordinator_.GenerationChanged(reading.slot->lease);
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

bool StepLoop::IsInReadings(LeaseId id) const {
  return std::any_of(readings_.begin(), readings_.end(),
                     [&](const Reading& reading) { return reading.slot.has_value() && reading.slot->lease == id; });
}

bool StepLoop::Reads(LeaseId id) const { return IsInReadings(id) || (!in_step_ && regions_.contains(id)); }

}  // namespace swiftcache::sim
