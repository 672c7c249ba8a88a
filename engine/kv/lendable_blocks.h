// SPDX-License-Identifier: Apache-2.0
// The KV memory of one engine as a lender sees it: runs of the own arena that are emptied, lent and taken back. Counts
// and names, no bytes.
//
//   std::optional<std::vector<Move>> moves = lendable.ClearForLending(run, max_moves);
//   for (const Move& move : *moves) lendable.FinishMove(move);               // when the bytes are copied
//   if (lendable.Lend(run)) ...                                              // zero what is WrittenIn it, then grant it
//   lendable.TakeBack(run);
//   for (int32_t place : lendable.TakeDirty()) ...                           // scrub, before the step writes
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/kv/block_pool.h"

namespace swiftcache::engine::kv {

/// Thread-safety: none; the step loop owns it, and calls it between steps. Ownership: KvCache is behind it. Errors:
/// none, what cannot be had is an answer. Units: places of the own arena, a block of all layers each.
class LendableBlocks {
 public:
  virtual ~LendableBlocks() = default;

  /// Of the blocks in the own arena, how many of those used last are worth keeping: so many stay when a run is cleared,
  /// and idle ones beyond them are evicted before lent memory is asked back. Before the first call none stays, and none
  /// is evicted for that.
  virtual void KeepCached(int64_t blocks) = 0;
  /// Empties a run of the own arena so that Lend can have it: see MovePlanner::Clear. The moves are from local to
  /// local: copy and finish them, and Lend, before the next plan. Where it takes more of them than `max_moves` Lend
  /// fails: go on in the next round. Nothing: it cannot be had now.
  virtual std::optional<std::vector<Move>> ClearForLending(PlaceRun run, int64_t max_moves) = 0;
  /// The bytes of one of these moves have arrived.
  virtual bool FinishMove(const Move& move) = 0;
  /// Takes the run out of use, at once whatever its length. False: it is not wholly free.
  virtual bool Lend(PlaceRun run) = 0;
  /// Undoes it: the run is free, and no more dirty than before. REQUIRES: lent, and granted to nobody.
  virtual void Unlend(PlaceRun run) = 0;
  /// Nobody has the run any more, and when TakeBack comes nobody knows: until then the arena is smaller by it. REQUIRES:
  /// lent.
  virtual void Withhold(PlaceRun run) = 0;
  /// Ends it: the run is free, and dirty. REQUIRES: lent.
  virtual void TakeBack(PlaceRun run) = 0;

  /// What may hold bytes in a run of the own arena, this engine's or another tenant's, ascending and never adjacent: the
  /// rest is zeroed. KV memory begins so.
  virtual std::vector<PlaceRun> WrittenIn(PlaceRun run) const = 0;
  /// The run was zeroed. It counts as written again from TakeBack on. REQUIRES: lent, and granted to nobody yet.
  virtual void NoteZeroed(PlaceRun run) = 0;
  /// Places of the own arena that hold another tenant's bytes and were allocated since the last call: to be scrubbed
  /// before the next step.
  virtual std::vector<int32_t> TakeDirty() = 0;

  /// How many lent blocks the calls of SequenceBlocks::Grow and Obtain since the last call wait for, and the last one of
  /// Tiers::ReserveLocal.
  virtual int64_t TakeNeed() = 0;

  virtual PlaceCounts local() const = 0;
  /// Without what is withheld.
  virtual int64_t num_leased_out() const = 0;
};

}  // namespace swiftcache::engine::kv
