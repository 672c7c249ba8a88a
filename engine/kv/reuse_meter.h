// SPDX-License-Identifier: Apache-2.0
// What an engine's own memory is worth as a cache, measured whatever is lent or borrowed at the time: a list of the
// blocks that a cache of its own arena, all of it and nothing more, would have (kv::LruDepth), without their bytes.
//
//   ReuseMeter meter(/*own_blocks=*/1000, /*block_tokens=*/16);
//   ReuseMeter::LookedUp seen = meter.LookUp(salt, prompt, /*blocks=*/40, /*found=*/30);   // what the real cache found
//   meter.Use(key = ReuseMeter::Next(seen.key, next_block_of_tokens));         // after the step that computed it
//   Reuse reuse = meter.Take();
//   reuse.CacheBlocks(1000) == 344;   // with these the same prompts would have found nearly as much
//   meter.NoteGone(key, ReuseMeter::Gone::kForLoan);
//   meter.LookUp(...).again_for_loans == 1;   // which own memory alone would have found
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "engine/kv/lru_depth.h"
#include "engine/kv/token_view.h"

namespace swiftcache::engine::kv {

/// Sums over prompts that were looked up. Thread-safety: a value. Units: blocks.
struct Reuse {
  static constexpr int kParts = 32;
  static constexpr int64_t kTolerance = 100;  // one part in so many

  int64_t looked_up = 0;
  std::array<int64_t, kParts> found = {};  // by own memory alone; i: that takes i + 1 parts of it, the rest is colder

  int64_t FoundAlone() const;
  /// The least memory, of `own_blocks`, with which these prompts would have cost at most one part in kTolerance more
  /// blocks to compute than with all of it; and one of the kParts to spare.
  int64_t CacheBlocks(int64_t own_blocks) const;
  /// With all of own memory these prompts find less than three fifths of what they ask for.
  bool Thrashes() const;
  Reuse& operator+=(const Reuse& other);
  friend bool operator==(const Reuse&, const Reuse&) = default;
};

/// Keys are hashes of all tokens up to a block's end: two of them that collide cost a wrong figure, and nothing else.
/// Thread-safety: none. Ownership: a value. Errors: none.
class ReuseMeter {
 public:
  ReuseMeter(int64_t own_blocks, int64_t block_tokens)
      : own_blocks_(own_blocks), block_tokens_(block_tokens), list_(own_blocks) {}

  struct LookedUp {
    uint64_t key = 0;         // of the first `found` blocks
    int64_t found_alone = 0;  // of the first blocks, those that own memory alone would have found
    // Of those, what the cache has no more and NoteGone said why.
    int64_t again_for_loans = 0, again_for_losses = 0;
  };
  /// A prompt's first `blocks` blocks are about to be used, of which the cache had the first `found`.
  /// REQUIRES: found <= blocks.
  LookedUp LookUp(const std::string& salt, const TokenView& tokens, int64_t blocks, int64_t found);
  /// The key of the block that follows the one of this key.
  static uint64_t Next(uint64_t key, std::span<const int32_t> tokens);
  void Use(uint64_t key) { list_.Use(key); }

  /// Why a block is not in the real cache any more.
  enum class Gone : uint8_t {
    kNo,
    kForLoan,     // it was evicted while own memory was lent, or for that
    kWithALease,  // it lay in a lease that ended
  };
  /// Until the block is used again.
  void NoteGone(uint64_t key, Gone why) { list_.SetNote(key, static_cast<uint8_t>(why)); }

  /// Since the last call.
  Reuse Take() { return std::exchange(reuse_, Reuse()); }

 private:
  const int64_t own_blocks_, block_tokens_;
  LruDepth list_;
  Reuse reuse_;
};

}  // namespace swiftcache::engine::kv
