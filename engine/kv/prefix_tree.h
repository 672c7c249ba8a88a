// SPDX-License-Identifier: Apache-2.0
// Which blocks hold the KV of which tokens: a radix tree whose edges are whole blocks of token ids, one tree a salt.
//
//   PrefixTree::Match match = tree.Find(salt, tokens, /*max_blocks=*/(prompt_tokens - 1) / block_tokens);
//   tree.Extend(match.pin, next_block_of_tokens, block);   // after the step that computed it
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/kv/block_pool.h"
#include "engine/kv/child_map.h"
#include "engine/kv/token_view.h"

namespace swiftcache::engine::kv {

/// Token ids are compared, all of them: a hash only finds the bucket, so a collision is never wrong KV. A path from a
/// root is a prompt's prefix. Whoever pins a node holds every block on the way to it (Find and Extend see to that), so
/// a block that only the tree holds can always be evicted, sooner or later, from the leaves. Blocks that move are left
/// alone until their move ends.
///
/// A block whose KV is lost leaves a hole: what follows from it stays, and is found again behind whoever computes the
/// hole's tokens once more. That is right because KV depends on the tokens before it and on nothing else, bit for bit.
/// Nobody is in a hole or behind it but by having filled it, so whatever leads to a block in use is no hole. A hole
/// goes with the last block behind it, and there are never more holes than blocks.
///
/// A node stays, for the next block of its id: nothing is freed where blocks go, because
/// an allocator may then tidy up what it holds of all, which is no time that a lease's end has.
/// Thread-safety: none. Ownership: holds its blocks as Holder::kCache; the pool outlives the tree, the tree outlives
/// the pins. Errors: none. Units: blocks, tokens.
class PrefixTree {
 private:
  struct Node;

 public:
  /// Keeps a node and its ancestors from eviction. Thread-safety: none. Ownership: move-only. Errors: none.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept { *this = std::move(other); }
    Pin& operator=(Pin&& other) noexcept;
    ~Pin() { Reset(); }
    void Reset();
    explicit operator bool() const { return node_ != nullptr; }

   private:
    friend class PrefixTree;
    Pin(PrefixTree* tree, Node* node);
    PrefixTree* tree_ = nullptr;
    Node* node_ = nullptr;
  };

  /// Whether a block is pinned from which nothing follows.
  static bool EndsAtLeaf(const Pin& pin) { return pin.node_->depth > 0 && pin.node_->children.empty(); }

  struct Match {
    std::vector<BlockRef> blocks;
    Pin pin;  // the last matched node, or the salt's root
  };
  /// How long a match would be, how many of its blocks nobody but the tree holds, how many lie in leases.
  struct Length {
    int64_t blocks = 0;
    int64_t idle_blocks = 0;
    int64_t leased_blocks = 0;
  };
  /// How many of a prompt's first blocks are in use, and where that was seen: to look again costs what changed since.
  class InUse {
   public:
    int64_t blocks() const { return blocks_; }

   private:
    friend class PrefixTree;
    int64_t blocks_ = 0;
    BlockId last_;           // of them
    uint64_t inserted_ = 0;  // when that one was
  };

  explicit PrefixTree(int64_t block_tokens) : block_tokens_(block_tokens) {}
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  /// The longest prefix of `tokens` in whole blocks that a `holder` may attach (BlockPool::MayAttach), at most
  /// `max_blocks`; counts as use. The blocks are held as `holder`.
  Match Find(const std::string& salt, const TokenView& tokens, int64_t max_blocks, Holder holder = Holder::kSequence);
  /// The same behind a pinned node, of whose path `tokens` are; the pin moves to the last block found. `max_blocks`: with
  /// those that lead to the node.
  std::vector<BlockRef> FindMore(Pin& pin, const TokenView& tokens, int64_t max_blocks, Holder holder);
  /// The number of the first block from `from` on that FindMore would find if those before it were there; nothing: none.
  std::optional<int64_t> NextKnown(const Pin& pin, const TokenView& tokens, int64_t from, int64_t max_blocks,
                                   Holder holder) const;
  /// The same without using it.
  Length Measure(const std::string& salt, const TokenView& tokens, int64_t max_blocks,
                 Holder holder = Holder::kSequence) const;

  /// Brings `in_use` up to date: of the longest prefix of `tokens` in whole blocks, at most `max_blocks` and each of
  /// them attachable, those that a sequence holds. REQUIRES: `in_use` is new or was brought up to date for the same.
  void Refresh(InUse& in_use, const std::string& salt, const TokenView& tokens, int64_t max_blocks) const;

  /// Adds `block`, whose KV is that of `tokens` after the pinned node, and moves the pin to it. If the tree has those
  /// tokens already, `block` becomes a hold on the tree's block instead; where that one lies in a lease and `block`
  /// does not, they change places first. False: the tree's block is on its way from a lease; nothing was changed, try
  /// again later. REQUIRES: tokens.size() == block_tokens.
  bool Extend(Pin& pin, std::span<const int32_t> tokens, BlockRef& block);

  /// Drops up to `count` blocks, least recently used leaves first; returns how many.
  int64_t Evict(int64_t count);
  /// Drops the least recently used leaf, if it was used before `before`.
  bool EvictOne(uint64_t before = UINT64_MAX);
  /// Drops the least recently used of the leaves that are `wanted` and were used at `from` or later, and sets `from` to
  /// its use: who drops several looks at each leaf once.
  bool EvictOneOf(absl::FunctionRef<bool(BlockId)> wanted, uint64_t& from);
  /// Drops a block, and keeps what follows from it behind a hole, while there are more blocks than holes; else drops
  /// that too. Returns how many blocks went. REQUIRES: Contains(id), nobody pins any of them.
  int64_t Lose(BlockId id);
  /// A move of the block began or ended just now: call it after each, of whatever block, before anything else.
  void NoteMove(BlockId id);

  bool Contains(BlockId id) const { return NodeOf(id) != nullptr; }
  /// The number of the block in a table that holds it. REQUIRES: Contains(id).
  int64_t IndexOf(BlockId id) const { return NodeOf(id)->depth - 1; }
  /// The block that leads to this one, if it is not a prompt's first. REQUIRES: Contains(id).
  std::optional<BlockId> ParentOf(BlockId id) const;
  /// These blocks in their order, but what leads to a block comes before it, since without that it is worth nothing:
  /// as far as it is `wanted`, even where it is not one of these. `num_wanted`: how many there are in all.
  std::vector<BlockId> LeadingFirst(std::span<const BlockId> blocks, int64_t num_wanted,
                                    absl::FunctionRef<bool(BlockId)> wanted) const;

  /// The blocks that left the tree since the last call; returns how many. To be called after each call that drops some.
  int64_t TakeGone(absl::FunctionRef<void(BlockId)> each);

  int64_t num_blocks() const { return num_blocks_; }
  /// Uses of blocks so far, which last_use counts.
  uint64_t uses() const { return uses_; }
  int64_t num_holes() const { return static_cast<int64_t>(holes_.size()); }
  /// INTERNAL says what does not add up.
  absl::Status CheckInvariants() const;

 private:
  struct Node {
    Node* parent = nullptr;  // none: a root, or not in the tree
    ChildMap<Node> children;
    BlockRef block;   // of nothing: a root, a hole, or not in the tree
    size_t hole = 0;  // index in holes_
    int64_t pins = 0;
    uint64_t last_use = 0;  // of a block, as the pool knows it
    int64_t depth = 0;      // of a root
    uint64_t inserted = 0;  // unique in the life of the tree
    std::vector<int32_t> tokens;
    std::string salt;  // of a root

    bool is_hole() const { return parent != nullptr && !block; }
  };
  // Unpinned leaves that do not move, by last use, which is unique.
  using Evictable = absl::btree_set<std::pair<uint64_t, Node*>>;

  // REQUIRES: where it is a hole, something follows from it.
  static bool IsEvictable(const Node& node) {
    return node.parent != nullptr && node.pins == 0 && node.children.empty() &&
           !node.block.pool().moving(node.block.id());
  }
  Node* NodeOf(BlockId id) const {
    Node* const node = static_cast<size_t>(id.value()) < nodes_.size() ? nodes_[id.value()].get() : nullptr;
    return node != nullptr && node->parent != nullptr ? node : nullptr;
  }
  Node* RootOf(const std::string& salt);
  static bool MayFind(const Node& node, Holder holder) {
    return !node.is_hole() && node.block.pool().MayAttach(node.block.id(), holder);
  }
  void CoverIds(const BlockPool& pool);
  void Fill(Node& hole, const BlockRef& block);
  std::unique_ptr<Node> TakeHole(const Node& hole);
  const Node* ChildOf(const Node& node, const TokenView& tokens, int64_t index, Holder holder) const;
  Node* Insert(Node& parent, std::span<const int32_t> tokens, const BlockRef& block);
  void Touch(Node& node);
  static void SetLastUse(Node& node, uint64_t time);
  void AddPin(Node& node);
  void DropPin(Node& node);
  int64_t Remove(Node& node);
  void Settle(Node& node);
  struct Counts {
    int64_t blocks = 0;
    size_t evictable = 0, holes = 0;
  };
  absl::Status CheckSubtree(const Node& root, Counts& counts) const;
  absl::Status CheckChild(const Node& node, const Node& child) const;

  const int64_t block_tokens_;
  absl::flat_hash_map<std::string, std::unique_ptr<Node>> roots_;
  Evictable evictable_;
  std::vector<std::unique_ptr<Node>> nodes_;  // by block id, from its first use on; none: see spare_
  std::vector<std::unique_ptr<Node>> holes_;  // in no order
  std::vector<std::unique_ptr<Node>> spare_;  // were holes, for blocks without a node
  std::vector<BlockId> gone_;
  uint64_t uses_ = 0;
  int64_t num_blocks_ = 0;
};

}  // namespace swiftcache::engine::kv
