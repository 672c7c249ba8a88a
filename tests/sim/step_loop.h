// SPDX-License-Identifier: Apache-2.0
// The loop of a simulated engine with its KV: sequences that grow, read all their blocks and end, in own memory and in
// leases. It knows what every cell must hold, so that it sees a wrong one.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/lease_channel.h"

namespace swiftcache::sim {

/// What the loop tells the coordinator, and asks of it.
class LoopEvents {
 public:
  virtual ~LoopEvents() = default;
  virtual void OnCleared(LeaseId id, bool ok) = 0;
  virtual void OnDrained(LeaseId id) = 0;
  virtual void OnDropped(LeaseId id) = 0;
  virtual void OnGenerationChanged(LeaseId id) = 0;
  virtual void OnWantsMemory(int64_t blocks) = 0;  // of others
  virtual void OnNeedsOwn(int64_t blocks) = 0;     // that it has lent
};

/// Between two steps it handles its messages, in order; within a step it reads, with time passing between the first
/// check of a generation, the reads and the last check. Own blocks from the head of the arena. Thread-safety: none.
/// Ownership: borrows all that it is given.
class StepLoop {
 public:
  struct Options {
    uint64_t engine_life = 0;  // unique in a run
    int64_t num_blocks = 0, cells_per_block = 1;
    int64_t least_wanted = 0, most_wanted = 0;  // blocks that it tries to hold: now and then another number
    bool long_steps = true;                     // now and then
    PlantedBug bug = PlantedBug::kNone;
  };
  StepLoop(Simulator& sim, Process& process, LeaseChannels& channels, Tally& tally, LoopEvents& events,
           const Options& options);

  void Start();
  /// Its next step lasts at least this much longer.
  void Hang(Micros extra) { hang_ += extra; }
  /// From now on it wants no more than what it has at home.
  void Quiesce();

  // Messages.
  void Clear(const engine::lease::Lease& lease);
  void StopClearing(engine::kv::LeaseId id) { unwanted_.insert(id); }
  void TakeBack(LeaseId id, const engine::lease::Extent& extent);
  void Use(const engine::lease::Lease& lease);
  void Drain(LeaseId id);
  void Lose(LeaseId id);
  void Stored(int64_t ticket, bool ok);

  bool InUse(LeaseId id) const;
  int64_t used_blocks() const;
  int64_t num_regions() const { return static_cast<int64_t>(regions_.size()); }
  /// Blocks that are not its own: away for the lease of the number.
  const std::vector<int64_t>& away() const { return away_; }

 private:
  struct Slot {
    LeaseId lease;
    int64_t index = 0;
  };
  struct Block {
    std::optional<int64_t> local;
    std::optional<Slot> remote;    // where it lies, if not local
    std::optional<int64_t> store;  // ticket of its way there
  };
  struct Sequence {
    int64_t id = 0;
    std::vector<Block> blocks;
  };
  struct Region {
    engine::lease::Lease lease;
    std::vector<bool> used;
    bool draining = false;
    int64_t stores = 0;  // under way
    bool told = false;
  };
  struct Transfer {
    int64_t sequence = 0, block = 0;
    Slot slot;
  };
  struct Reading {
    int64_t sequence = 0;
    int64_t block = 0;
    std::optional<Slot> slot;  // none: local
    bool held = true;
    std::vector<uint64_t> values;
  };

  void BeginStep();
  void EndStep();
  void HandleMessages();
  void Work();
  void ChooseTarget();
  void Grow();
  void Recompute();
  void Spill();
  void EndOneSequence();
  void BeginReading();
  void ReadCells(Reading& reading, int64_t begin, int64_t end);
  void FinishReading();
  std::set<engine::kv::LeaseId> unwanted_;  // loans
  void DoClear(const engine::lease::Lease& lease);
  void DoDrain(LeaseId id);
  void DoLose(LeaseId id);
  void DoStored(int64_t ticket, bool ok);
  void MoveOut(Region& region);
  void FinishDrains();
  void ForgetBlocksOf(LeaseId id);

  std::optional<int64_t> TakeLocal();
  template <typename ValueOf>
  void Write(int64_t local, const ValueOf& value_of);
  void WriteLocal(int64_t local, int64_t sequence, int64_t block);
  void FreeBlock(Block& block);
  void FreeSlot(const Slot& slot);
  uint64_t Expected(int64_t sequence, int64_t block, int64_t cell) const;
  Sequence* FindSequence(int64_t id);
  int64_t total_blocks() const;
  void Wrong(const Reading& reading, int64_t cell, uint64_t found);

  Simulator& sim_;
  Process& process_;
  LeaseChannels& channels_;
  Tally& tally_;
  LoopEvents& events_;
  const Options options_;

  std::vector<std::function<void()>> inbox_;
  std::vector<int64_t> away_;  // by own block: the lease it is away for; 0: ours
  std::vector<bool> in_use_;   // by own block
  std::deque<Sequence> sequences_;
  std::map<LeaseId, Region> regions_;
  std::map<int64_t, Transfer> transfers_;  // by ticket
  std::vector<Reading> readings_;
  int64_t last_sequence_ = 0, target_blocks_ = 0;
  bool quiet_ = false;
  Micros hang_ = 0;
};

}  // namespace swiftcache::sim
