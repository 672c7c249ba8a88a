// SPDX-License-Identifier: Apache-2.0
// The regular cache (RC): full-layer blocks in local memory, as the scheduler asks for them. Counts and names, no
// bytes.
//
//   int64_t cached = cache.Attach(table, salt, tokens);
//   if (!cache.Grow(table, computed + chunk)) ...            // somebody must give way
//   cache.Commit(table, tokens, computed);                   // after the step
//   cache.Release(table);
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/units.h"
#include "engine/kv/block_allocator.h"
#include "engine/kv/prefix_tree.h"

namespace swiftcache::engine::kv {

/// The blocks of one sequence, in order of its tokens. Thread-safety: none. Ownership: holds its blocks; must not
/// outlive the RegularCache that filled it. Errors: none.
class BlockTable {
 public:
  int64_t size() const { return static_cast<int64_t>(blocks_.size()); }
  BlockId operator[](int64_t i) const { return blocks_[i].id(); }

 private:
  friend class RegularCache;
  std::vector<BlockRef> blocks_;
  int64_t committed_ = 0;  // leading blocks that are in the prefix tree
  PrefixTree::Pin pin_;    // at block committed_ - 1; declared last: unpinned before the holds end
};

/// Thread-safety: none; the step loop owns it. Ownership: owns allocator and prefix tree. Errors: none, what does not
/// fit is answered with false. Units: as named.
class RegularCache {
 public:
  struct Options {
    int64_t num_blocks = 0;
    int64_t block_tokens = 0;
    bool enable_prefix_caching = true;
  };
  explicit RegularCache(const Options& options);

  int64_t BlocksFor(int64_t tokens) const { return CeilDiv(tokens, options_.block_tokens); }

  /// What Attach would find, without using it.
  PrefixTree::Length Measure(const std::string& salt, std::span<const int32_t> tokens) const;
  /// Gives an empty table the cached blocks of a prefix of `tokens`: whole blocks, and never all tokens, since the last
  /// one's logits have to be computed. Returns the tokens they hold.
  int64_t Attach(BlockTable& table, const std::string& salt, std::span<const int32_t> tokens);
  /// Makes the table cover `tokens`; evicts cached blocks where needed. False: it does not fit, nothing was changed.
  bool Grow(BlockTable& table, int64_t tokens);
  /// Puts the full blocks among the first `computed_tokens` of `tokens` into the prefix tree.
  void Commit(BlockTable& table, std::span<const int32_t> tokens, int64_t computed_tokens);
  /// Empties the table; committed blocks stay cached until their room is needed.
  void Release(BlockTable& table);

  int64_t block_tokens() const { return options_.block_tokens; }
  int64_t num_blocks() const { return allocator_.num_blocks(); }
  int64_t num_used() const { return allocator_.num_used(); }
  int64_t num_cached() const { return allocator_.num_cached(); }
  int64_t num_free() const { return allocator_.num_free(); }
  /// Blocks that Grow can still give.
  int64_t num_available() const { return num_free() + num_cached(); }
  int64_t evicted_total() const { return evicted_total_; }

  /// Recounts everything; `tables` are all tables in use. INTERNAL says what does not add up.
  absl::Status CheckInvariants(std::span<const BlockTable* const> tables) const;

 private:
  int64_t MatchLimit(std::span<const int32_t> tokens) const;

  const Options options_;
  BlockAllocator allocator_;
  PrefixTree tree_;
  int64_t evicted_total_ = 0;
};

}  // namespace swiftcache::engine::kv
