// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/prefix_tree.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace swiftcache::engine::kv {

PrefixTree::Pin::Pin(PrefixTree* tree, Node* node) : tree_(tree), node_(node) { tree->AddPin(*node); }

PrefixTree::Pin& PrefixTree::Pin::operator=(Pin&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  tree_ = other.tree_;
  node_ = std::exchange(other.node_, nullptr);
  return *this;
}

void PrefixTree::Pin::Reset() {
  if (Node* node = std::exchange(node_, nullptr)) tree_->DropPin(*node);
}

PrefixTree::Match PrefixTree::Find(const std::string& salt, const TokenView& tokens, int64_t max_blocks,
                                   Holder holder) {
  Match match;
  match.pin = Pin(this, RootOf(salt));
  match.blocks = FindMore(match.pin, tokens, max_blocks, holder);
  return match;
}

std::vector<BlockRef> PrefixTree::FindMore(Pin& pin, const TokenView& tokens, int64_t max_blocks, Holder holder) {
  std::vector<BlockRef> blocks;
  Node* node = pin.node_;
  while (node->depth < max_blocks) {
    const Node* child = ChildOf(*node, tokens, node->depth, holder);
    if (child == nullptr) break;
    node = const_cast<Node*>(child);  // reached from a node of our own
    Touch(*node);
    blocks.push_back(node->block.Share(holder));
  }
  if (node != pin.node_) pin = Pin(this, node);
  return blocks;
}

std::optional<int64_t> PrefixTree::NextKnown(const Pin& pin, const TokenView& tokens, int64_t from, int64_t max_blocks,
                                             Holder holder) const {
  for (const Node* node = pin.node_; node->depth < max_blocks && !node->children.empty();) {
    node = node->children.Find(tokens.Run(node->depth * block_tokens_, block_tokens_));
    if (node == nullptr) break;
    if (node->depth > from && MayFind(*node, holder)) return node->depth - 1;
  }
  return std::nullopt;
}

PrefixTree::Length PrefixTree::Measure(const std::string& salt, const TokenView& tokens, int64_t max_blocks,
                                       Holder holder) const {
  Length length;
  const auto root = roots_.find(salt);
  const Node* node = root == roots_.end() ? nullptr : root->second.get();
  while (node != nullptr && length.blocks < max_blocks) {
    node = ChildOf(*node, tokens, length.blocks, holder);
    if (node == nullptr) break;
    ++length.blocks;
    length.idle_blocks += node->block.idle();
    length.leased_blocks += !node->block.pool().place(node->block.id()).local();
  }
  return length;
}

// Whatever leads to a block in use is in use. From where it was seen last: up while that is idle by now, then down. Where
// the block is gone, so may be those above it, and the look begins at the root.
void PrefixTree::Refresh(InUse& in_use, const std::string& salt, const TokenView& tokens, int64_t max_blocks) const {
  const Node* node = in_use.blocks_ > 0 ? NodeOf(in_use.last_) : nullptr;
  if (node != nullptr && node->inserted != in_use.inserted_) node = nullptr;
  while (node != nullptr && node->parent != nullptr && (node->is_hole() || node->block.idle())) node = node->parent;
  if (node == nullptr) {
    const auto root = roots_.find(salt);
    in_use = InUse();
    if (root == roots_.end()) return;
    node = root->second.get();
  }
  while (node->depth < max_blocks) {
    const Node* child = ChildOf(*node, tokens, node->depth, Holder::kSequence);
    if (child == nullptr || child->block.idle()) break;
    node = child;
  }
  in_use.blocks_ = node->depth;
  in_use.last_ = node->block.id();
  in_use.inserted_ = node->inserted;
}

bool PrefixTree::Extend(Pin& pin, std::span<const int32_t> tokens, BlockRef& block) {
  CHECK_EQ(static_cast<int64_t>(tokens.size()), block_tokens_);
  Node& parent = *pin.node_;
  Node* child = parent.children.Find(tokens);
  if (child == nullptr) {
    child = Insert(parent, tokens, block);
  } else if (child->is_hole()) {
    Fill(*child, block);
  } else {
    if (child->block.id() != block.id() && !block.GiveWayTo(child->block)) return false;
    Touch(*child);
  }
  pin = Pin(this, child);
  return true;
}

PrefixTree::Node* PrefixTree::Insert(Node& parent, std::span<const int32_t> tokens, const BlockRef& block) {
  const auto id = static_cast<size_t>(block.id().value());
  if (id >= nodes_.size()) CoverIds(block.pool());
  if (nodes_[id] == nullptr && !spare_.empty()) {
    nodes_[id] = std::move(spare_.back());
    spare_.pop_back();
  }
  if (nodes_[id] == nullptr) nodes_[id] = std::make_unique<Node>();
  Node* const node = nodes_[id].get();
  node->parent = &parent;
  node->tokens.assign(tokens.begin(), tokens.end());
  node->depth = parent.depth + 1;
  node->last_use = node->inserted = ++uses_;
  block.NoteUse(node->last_use);
  node->block = block.Share(Holder::kCache);
  if (IsEvictable(parent)) evictable_.erase({parent.last_use, &parent});
  parent.children.Add(node);
  ++num_blocks_;
  Settle(*node);
  return node;
}

void PrefixTree::CoverIds(const BlockPool& pool) {
  nodes_.resize(pool.id_limit());
  gone_.reserve(pool.id_limit());
}

// As for a block that is new here: who saw the one before it in use looks again.
void PrefixTree::Fill(Node& hole, const BlockRef& block) {
  const auto id = static_cast<size_t>(block.id().value());
  if (id >= nodes_.size()) CoverIds(block.pool());
  if (nodes_[id] != nullptr) spare_.push_back(std::move(nodes_[id]));
  nodes_[id] = TakeHole(hole);
  hole.last_use = hole.inserted = ++uses_;
  block.NoteUse(hole.last_use);
  hole.block = block.Share(Holder::kCache);
  ++num_blocks_;
}

std::unique_ptr<PrefixTree::Node> PrefixTree::TakeHole(const Node& hole) {
  const size_t index = hole.hole;
  std::swap(holes_[index], holes_.back());
  holes_[index]->hole = index;
  std::unique_ptr<Node> taken = std::move(holes_.back());
  holes_.pop_back();
  return taken;
}

int64_t PrefixTree::Lose(BlockId id) {
  Node* const node = NodeOf(id);
  if (node->children.empty() || num_holes() >= num_blocks_) return Remove(*node);
  CHECK_EQ(node->pins, 0) << "block " << id << " is in use";
  gone_.push_back(id);
  node->block = BlockRef();
  node->hole = holes_.size();
  holes_.push_back(std::move(nodes_[id.value()]));
  --num_blocks_;
  return 1;
}

int64_t PrefixTree::TakeGone(absl::FunctionRef<void(BlockId)> each) {
  for (const BlockId id : gone_) each(id);
  const auto count = static_cast<int64_t>(gone_.size());
  gone_.clear();
  return count;
}

int64_t PrefixTree::Evict(int64_t count) {
  int64_t evicted = 0;
  while (evicted < count && EvictOne()) ++evicted;
  return evicted;
}

bool PrefixTree::EvictOne(uint64_t before) {
  if (evictable_.empty() || evictable_.begin()->first >= before) return false;
  Remove(*evictable_.begin()->second);
  return true;
}

bool PrefixTree::EvictOneOf(absl::FunctionRef<bool(BlockId)> wanted, uint64_t& from) {
  const auto leaf = std::find_if(evictable_.lower_bound({from, nullptr}), evictable_.end(),
                                 [&](const auto& entry) { return wanted(entry.second->block.id()); });
  from = leaf == evictable_.end() ? UINT64_MAX : leaf->first;
  if (leaf == evictable_.end()) return false;
  Remove(*leaf->second);
  return true;
}

void PrefixTree::NoteMove(BlockId id) {
  Node* const node = NodeOf(id);
  if (node == nullptr || node->pins > 0 || !node->children.empty()) return;
  if (IsEvictable(*node)) {
    evictable_.emplace(node->last_use, node);
  } else {
    evictable_.erase({node->last_use, node});
  }
}

std::optional<BlockId> PrefixTree::ParentOf(BlockId id) const {
  const Node& parent = *NodeOf(id)->parent;
  return parent.block ? std::optional(parent.block.id()) : std::nullopt;
}

std::vector<BlockId> PrefixTree::LeadingFirst(std::span<const BlockId> blocks, int64_t num_wanted,
                                              absl::FunctionRef<bool(BlockId)> wanted) const {
  std::vector<BlockId> ordered;
  absl::flat_hash_set<const Node*> seen;
  for (const BlockId id : blocks) {
    const size_t path = ordered.size();
    for (const Node* node = NodeOf(id); node->parent != nullptr; node = node->parent) {
      if (static_cast<int64_t>(ordered.size()) == num_wanted || !seen.insert(node).second) break;
      if (!node->is_hole() && wanted(node->block.id())) ordered.push_back(node->block.id());
    }
    std::reverse(ordered.begin() + path, ordered.end());
  }
  return ordered;
}

// Using a child is using its parent, so the parent inherits the latest of their times. The holes that led to nothing else
// go too.
int64_t PrefixTree::Remove(Node& node) {
  Node* top = &node;
  while (top->parent->is_hole() && top->parent->children.size() == 1) top = top->parent;
  Node& parent = *top->parent;
  parent.children.Remove(top);
  uint64_t last_use = 0;
  int64_t removed = 0;
  absl::InlinedVector<Node*, 8> open = {top};  // mostly a leaf alone
  while (!open.empty()) {
    Node& gone = *open.back();
    open.pop_back();
    CHECK_EQ(gone.pins, 0) << "a block that is in use is removed";
    if (IsEvictable(gone)) evictable_.erase({gone.last_use, &gone});
    last_use = std::max(last_use, gone.last_use);
    gone.children.ForEach([&open](Node* child) { open.push_back(child); });
    gone.children.Clear();
    if (gone.is_hole()) {
      spare_.push_back(TakeHole(gone));
    } else {
      gone_.push_back(gone.block.id());
      gone.block = BlockRef();
      ++removed;
    }
    gone.parent = nullptr;
  }
  num_blocks_ -= removed;
  if (last_use > parent.last_use) SetLastUse(parent, last_use);
  Settle(parent);
  return removed;
}

// After a node lost a pin or a child: it may be evictable now, or a root that nobody needs.
void PrefixTree::Settle(Node& node) {
  if (IsEvictable(node)) evictable_.emplace(node.last_use, &node);
  if (node.parent == nullptr && node.pins == 0 && node.children.empty()) roots_.erase(roots_.find(node.salt));
}

void PrefixTree::Touch(Node& node) {
  const bool listed = IsEvictable(node);
  if (listed) evictable_.erase({node.last_use, &node});
  SetLastUse(node, ++uses_);
  if (listed) evictable_.emplace(node.last_use, &node);
}

void PrefixTree::SetLastUse(Node& node, uint64_t time) {
  node.last_use = time;
  if (node.block) node.block.NoteUse(time);
}

void PrefixTree::AddPin(Node& node) {
  if (IsEvictable(node)) evictable_.erase({node.last_use, &node});
  ++node.pins;
}

void PrefixTree::DropPin(Node& node) {
  SetLastUse(node, ++uses_);  // pinned until now, hence not listed
  --node.pins;
  Settle(node);
}

PrefixTree::Node* PrefixTree::RootOf(const std::string& salt) {
  std::unique_ptr<Node>& root = roots_[salt];
  if (root == nullptr) {
    root = std::make_unique<Node>();
    root->salt = salt;
  }
  return root.get();
}

// The child for block `index` of `tokens`, if that block is whole and known, and the holder may have it.
const PrefixTree::Node* PrefixTree::ChildOf(const Node& node, const TokenView& tokens, int64_t index,
                                            Holder holder) const {
  if ((index + 1) * block_tokens_ > tokens.size()) return nullptr;
  const Node* child = node.children.Find(tokens.Run(index * block_tokens_, block_tokens_));
  return child != nullptr && MayFind(*child, holder) ? child : nullptr;
}

absl::Status PrefixTree::CheckInvariants() const {
  Counts counts;
  for (const auto& [salt, root] : roots_) {
    if (absl::Status status = CheckSubtree(*root, counts); !status.ok()) return status;
  }
  const auto indexed = std::count_if(nodes_.begin(), nodes_.end(),
                                     [](const auto& node) { return node != nullptr && node->parent != nullptr; });
  if (counts.blocks == num_blocks_ && indexed == counts.blocks && counts.evictable == evictable_.size() &&
      counts.holes == holes_.size()) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("prefix tree: found ", counts.blocks, " blocks, counted ", num_blocks_,
                                          ", indexed ", indexed, "; found ", counts.evictable, " evictable, listed ",
                                          evictable_.size(), "; found ", counts.holes, " holes, listed ",
                                          holes_.size()));
}

absl::Status PrefixTree::CheckSubtree(const Node& root, Counts& counts) const {
  std::vector<const Node*> open = {&root};
  while (!open.empty()) {
    const Node& node = *open.back();
    open.pop_back();
    if (node.is_hole()) {
      ++counts.holes;
      if (node.children.empty()) return absl::InternalError("prefix tree: a hole that leads to nothing was kept");
    } else {
      counts.blocks += node.parent != nullptr;
      counts.evictable += IsEvictable(node) && evictable_.contains({node.last_use, const_cast<Node*>(&node)});
    }
    if (node.parent == nullptr && node.pins == 0 && node.children.empty()) {
      return absl::InternalError("prefix tree: a root that nobody uses was kept");
    }
    const size_t first = open.size();
    node.children.ForEach([&open](const Node* child) { open.push_back(child); });
    for (size_t i = first; i < open.size(); ++i) {
      if (absl::Status status = CheckChild(node, *open[i]); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status PrefixTree::CheckChild(const Node& node, const Node& child) const {
  if (child.parent != &node || node.children.Find(child.tokens) != &child) {
    return absl::InternalError("prefix tree: a child is filed under another parent or other tokens");
  }
  if (child.is_hole()) {
    if (child.pins == 0 && child.depth == node.depth + 1 && holes_[child.hole].get() == &child) return absl::OkStatus();
    return absl::InternalError("prefix tree: a hole is pinned, counted at another depth or not listed");
  }
  const int32_t id = child.block.id().value();
  if (NodeOf(child.block.id()) != &child) {
    return absl::InternalError(absl::StrCat("prefix tree: block ", id, " is not indexed"));
  }
  if (child.depth != node.depth + 1 || child.last_use != child.block.pool().last_use(child.block.id())) {
    return absl::InternalError(
        absl::StrCat("prefix tree: block ", id, " is counted at another depth or has another time of its last use"));
  }
  if (node.parent != nullptr && (node.is_hole() || node.block.idle()) && !child.block.idle()) {
    return absl::InternalError(
        absl::StrCat("prefix tree: what leads to block ", id, ", which is in use, is idle or a hole"));
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::kv
