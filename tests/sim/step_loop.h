// SPDX-License-Identifier: Apache-2.0
// The loop of a simulated engine with its KV: sequences that grow, read all their blocks and end, in own memory and in
// leases. It knows what every cell must hold, so that it sees a wrong one. In place of engine/exec and engine/kv it keeps
// to what they promise the coordinator: it answers each message, and keeps the rules of StepReads.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/coordinator/coordinator.h"
#include "engine/coordinator/loop_message.h"
#include "tests/sim/lease_channel.h"
#include "tests/sim/need_watch.h"

namespace swiftcache::sim {

/// Between two steps it handles its messages, in order; within a step it reads, with time passing between the first
/// check of a generation, the reads and the last check. Own blocks from the head of the arena. Thread-safety: none.
/// Ownership: borrows all that it is given.
class StepLoop {
 public:
  struct Options {
    uint64_t engine_life = 0;  // unique in a run
    int64_t num_blocks = 0, cells_per_block = 1;
    int64_t least_wanted = 0, most_wanted = 0;  // blocks that it tries to hold: now and then another number
    bool borrows = true;
    bool calm = false;  // its steps are short, and it wants nothing back and gives nothing back
    PlantedBug bug = PlantedBug::kNone;
  };
  StepLoop(Simulator& sim, Process& process, LeaseChannels& channels, engine::coordinator::Coordinator& coordinator,
           NeedWatch& needs, Tally& tally, const Options& options);

  void Start();
  void Push(engine::coordinator::LoopMessage message) { inbox_.push_back(std::move(message)); }
  /// Its next step lasts at least this much longer.
  void Hang(Micros extra) { hang_ += extra; }
  /// From now on it wants no more than what it has at home.
  void Quiesce();
  /// Wants own memory back that is lent.
  void NeedBack(int64_t blocks);

  /// A step reads there now, or may begin to before the loop hears of anything.
  bool Reads(LeaseId id) const;
  bool Knows(LeaseId id) const { return Reads(id) || regions_.contains(id); }
  int64_t used_blocks() const;
  int64_t num_regions() const { return static_cast<int64_t>(regions_.size()); }
  /// Blocks that are not its own: away for the lease of the number.
  const std::vector<int64_t>& away() const { return away_; }
  int64_t num_away() const;

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
    std::vector<bool> used;
    bool draining = false;
    int64_t stores = 0;  // under way
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
  void Compute();
  void EndStep();
  void HandleMessages();
  void Work();
  void ChooseTarget();
  void Grow();
  void WishForMemory(int64_t blocks);
  void Recompute();
  void Spill();
  void EndOneSequence();
  void ChooseReadings();
  void ReadCells(Reading& reading, int64_t begin, int64_t end);
  void FinishReading();
  bool IsInReadings(LeaseId id) const;

  // Of leases (step_loop_leases.cc).
  bool BeginReads();
  void EndReads();
  bool IsRunThere(LeaseId id) const;
  void GiveBackSome();
  void Do(const engine::coordinator::ClearMessage& message);
  void Do(const engine::coordinator::StopClearingMessage& message) { unwanted_.insert(message.id); }
  void Do(const engine::coordinator::TakeBackMessage& message);
  void Do(const engine::coordinator::UseMessage& message);
  void Do(const engine::coordinator::DrainMessage& message);
  void Do(const engine::coordinator::LoseMessage& message);
  void Do(const engine::coordinator::StoredMessage& message);
  void Do(const engine::coordinator::LendableMessage&) {}
  void Do(const engine::coordinator::TermsMessage&) {}
  void MoveOut(LeaseId id);
  void FinishDrains();
  void Forget(LeaseId id);

  std::optional<int64_t> TakeLocal();
  template <typename ValueOf>
  void Write(int64_t local, const ValueOf& value_of);
  void WriteLocal(int64_t local, int64_t sequence, int64_t block);
  void Scrub(int64_t local);
  void FreeBlock(Block& block);
  void FreeSlot(const Slot& slot);
  uint64_t Expected(int64_t sequence, int64_t block, int64_t cell) const;
  Sequence* FindSequence(int64_t id);
  int64_t total_blocks() const;
  void Wrong(const Reading& reading, int64_t cell, uint64_t found);

  Simulator& sim_;
  Process& process_;
  LeaseChannels& channels_;
  engine::coordinator::Coordinator& coordinator_;
  NeedWatch& needs_;
  Tally& tally_;
  const Options options_;

  std::vector<engine::coordinator::LoopMessage> inbox_;
  std::set<LeaseId> unwanted_;  // not to be cleared any more
  std::vector<int64_t> away_;   // by own block: the lease it is away for; 0: ours
  std::vector<bool> in_use_;    // by own block
  std::deque<Sequence> sequences_;
  std::map<LeaseId, Region> regions_;
  std::map<int64_t, Transfer> transfers_;  // by ticket
  std::vector<Reading> readings_;
  int64_t last_sequence_ = 0, target_blocks_ = 0;
  bool quiet_ = false;
  bool in_step_ = false;  // the coordinator gives back what no step reads
  Micros hang_ = 0, next_need_ = 0;
};

}  // namespace swiftcache::sim
