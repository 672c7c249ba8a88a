// SPDX-License-Identifier: Apache-2.0
// The KV memory of one engine as sequences see it, and whoever schedules or computes them: blocks for tokens, and the
// blocks that are known already. Where else they lie than in the own arena is for Tiers, and
// what of it is lent for LendableBlocks.
//
//   SequenceBlocks::Attached cached = blocks.Attach(table, salt, tokens, /*local_only=*/false);
//   computed += blocks.AttachMore(table, tokens, computed).tokens;
//   if (blocks.Grow(table, computed + chunk, computed + chunk) == Growth::kNoRoom) ...   // somebody must give way
//   blocks.Commit(table, tokens, computed);                                              // after the step
//   blocks.Release(table);
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/kv/block_pool.h"
#include "engine/kv/prefix_tree.h"

namespace swiftcache::engine::kv {

/// The blocks of one sequence, in order of its tokens. Thread-safety: none. Ownership: holds its blocks; must not
/// outlive the KvCache that filled it. Errors: none.
class BlockTable {
 public:
  int64_t size() const { return static_cast<int64_t>(blocks_.size()); }
  BlockId operator[](int64_t i) const { return blocks_[i].id(); }

 private:
  friend class KvCache;
  std::vector<BlockRef> blocks_;
  uint64_t filling_ = 0;               // another each time that it is filled from nothing; 0: it is empty
  int64_t committed_ = 0;              // leading blocks that are in the prefix tree
  Holder holder_ = Holder::kSequence;  // of its blocks
  PrefixTree::Pin pin_;                // at block committed_ - 1
  uint64_t reuse_key_ = 0;             // likewise: of ReuseMeter, which
  int64_t looked_up_ = 0;              // has heard of so many leading blocks
  bool is_first_run_ = false;          // it has not been emptied since its first Attach
  // They stay when the table is emptied: it was attached before, and goes on from where another sequence ended.
  bool was_attached_ = false, continues_ = false;
};

/// kWait: room is on its way, because moves that free it are under way, or Tiers::TakeMoves or LendableBlocks::TakeNeed
/// will name what does it. The loop calls both after each plan; until something came of it, asking again gives the same
/// answer.
enum class Growth { kDone, kWait, kNoRoom };

/// Thread-safety: none; the step loop owns it. Ownership: KvCache is behind it. Errors: none, what does not fit is an
/// answer. Units: as named; blocks of all layers.
class SequenceBlocks {
 public:
  struct Attached {
    int64_t tokens = 0;         // all
    int64_t leased_tokens = 0;  // of them, in leases
  };

  virtual ~SequenceBlocks() = default;

  virtual int64_t block_tokens() const = 0;
  virtual int64_t BlocksFor(int64_t tokens) const = 0;

  /// What Attach would find, without using it.
  virtual PrefixTree::Length Measure(const std::string& salt, const TokenView& tokens, bool local_only) const = 0;
  /// How many blocks of a prompt running sequences hold, which Attach would share: looked up once, then kept up to date
  /// in `seen`. REQUIRES: `seen` is new or of these tokens.
  virtual int64_t BlocksInUse(PrefixTree::InUse& seen, const std::string& salt, const TokenView& tokens) const = 0;
  /// Gives an empty table the cached blocks of a prefix of `tokens`: whole blocks, and never all tokens, since the last
  /// one's logits have to be computed. local_only: none that lie in a lease, and until Release the table's blocks stay
  /// in the own arena.
  virtual Attached Attach(BlockTable& table, const std::string& salt, const TokenView& tokens, bool local_only) = 0;
  /// Adds the cached blocks that follow from what is committed, so that they need not be computed; the first may take the
  /// place of one that is computed in part. (They were behind a hole that is filled now, or another sequence computed
  /// them.)
  virtual Attached AttachMore(BlockTable& table, const TokenView& tokens, int64_t computed_tokens) = 0;
  /// How many tokens from `computed_tokens` on must be computed before AttachMore may find the rest of a prefix that lost
  /// blocks: at least one, and no more than `most`, which bounds what it costs to look. All that are left, where nothing
  /// is known behind them.
  virtual int64_t UnknownTokens(const BlockTable& table, const TokenView& tokens, int64_t computed_tokens,
                                int64_t most) const = 0;
  /// Makes the table cover `tokens`, all or nothing. `wish_tokens`: how many it would cover if there were room: if it
  /// has to wait, then room for so many is made; fewer than `tokens` stand for `tokens`.
  virtual Growth Grow(BlockTable& table, int64_t tokens, int64_t wish_tokens) = 0;
  /// How many of `blocks` more a Grow right after this one gives without waiting; makes room for the rest.
  virtual int64_t Obtain(int64_t blocks) = 0;
  /// Puts the full blocks among the first `computed_tokens` of `tokens` into the prefix tree.
  virtual void Commit(BlockTable& table, const TokenView& tokens, int64_t computed_tokens) = 0;
  /// Empties the table; committed blocks stay cached until their room is needed.
  virtual void Release(BlockTable& table) = 0;
  /// Likewise, of a sequence that waits to be computed again: what it had committed is expected to be found, by itself:
  /// until that attaches to it (or, where the sequence is cancelled before, until it is evicted).
  virtual void ReleaseForNow(BlockTable& table) = 0;
  /// A sequence waits until the cache has this many blocks.
  virtual void NoteWish(int64_t blocks) = 0;

  virtual Place place(BlockId id) const = 0;
  virtual Filling filling(BlockId id) const = 0;
  /// Calls `changed` for each block of the table that is new, another or elsewhere since `cursor` was here last, and
  /// brings that up to date. Of those that are new, in their order. Costs these, and a look at each change of a place
  /// since then; never more than all blocks of the table.
  virtual void FollowPlaces(const BlockTable& table, PlaceCursor& cursor,
                            absl::FunctionRef<void(int64_t block)> changed) const = 0;
  /// True where an answer may be kWait.
  virtual bool has_tiers() const = 0;
  /// The places of all leases.
  virtual PlaceCounts leased_in() const = 0;
  /// How many blocks no other table holds than these, and give room once these are released: not what lies in a lease
  /// that drains.
  virtual int64_t HeldByNobodyElse(std::span<const BlockTable* const> tables) const = 0;
  /// Local places for sequences, lent ones included: those can be had back. (Those withheld are not: nobody knows when.)
  virtual int64_t num_usable_local() const = 0;
  /// Places for sequences, now and if leases came to all they may.
  virtual int64_t num_usable() const = 0;
  virtual int64_t num_potential() const = 0;
  /// Blocks that Grow can still give, now or after a wait.
  virtual int64_t num_available() const = 0;

  /// Recounts everything; `tables` are all tables in use. INTERNAL says what does not add up.
  virtual absl::Status CheckInvariants(std::span<const BlockTable* const> tables) const = 0;
};

}  // namespace swiftcache::engine::kv
