// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/prefix_tree.h"

#include <algorithm>

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

// From the leaves, so that a long path does not unwind through as many nested destructors.
PrefixTree::~PrefixTree() { Evict(num_blocks_); }

PrefixTree::Match PrefixTree::Find(const std::string& salt, std::span<const int32_t> tokens, int64_t max_blocks) {
  Match match;
  Node* node = RootOf(salt);
  while (static_cast<int64_t>(match.blocks.size()) < max_blocks) {
    const Node* child = ChildOf(*node, tokens, match.blocks.size());
    if (child == nullptr) break;
    node = const_cast<Node*>(child);  // reached from our own root
    Touch(*node);
    match.blocks.push_back(node->block.Share(Holder::kSequence));
  }
  match.pin = Pin(this, node);
  return match;
}

PrefixTree::Length PrefixTree::Measure(const std::string& salt, std::span<const int32_t> tokens,
                                       int64_t max_blocks) const {
  Length length;
  const auto root = roots_.find(salt);
  const Node* node = root == roots_.end() ? nullptr : root->second.get();
  while (node != nullptr && length.blocks < max_blocks) {
    node = ChildOf(*node, tokens, length.blocks);
    if (node == nullptr) break;
    ++length.blocks;
    length.idle_blocks += node->block.idle();
  }
  return length;
}

void PrefixTree::Extend(Pin& pin, std::span<const int32_t> tokens, BlockRef& block) {
  CHECK_EQ(static_cast<int64_t>(tokens.size()), block_tokens_);
  Node& parent = *pin.node_;
  const auto found = parent.children.find(KeyOf(tokens));
  Node* child = found != parent.children.end() ? found->second.get() : Insert(parent, tokens, block);
  if (child->block.id() != block.id()) block = child->block.Share(Holder::kSequence);
  Touch(*child);
  pin = Pin(this, child);
}

PrefixTree::Node* PrefixTree::Insert(Node& parent, std::span<const int32_t> tokens, const BlockRef& block) {
  auto node = std::make_unique<Node>();
  node->parent = &parent;
  node->tokens.assign(tokens.begin(), tokens.end());
  node->block = block.Share(Holder::kCache);
  evictable_.erase({parent.last_use, &parent});
  Node* inserted = node.get();
  parent.children.emplace(KeyOf(inserted->tokens), std::move(node));
  ++num_blocks_;
  Settle(*inserted);
  return inserted;
}

int64_t PrefixTree::Evict(int64_t count) {
  int64_t evicted = 0;
  for (; evicted < count && !evictable_.empty(); ++evicted) RemoveLeaf(*evictable_.begin()->second);
  return evicted;
}

// Using a child is using its parent, so the parent inherits the later of both times.
void PrefixTree::RemoveLeaf(Node& leaf) {
  Node& parent = *leaf.parent;
  evictable_.erase({leaf.last_use, &leaf});
  parent.last_use = std::max(parent.last_use, leaf.last_use);
  parent.children.erase(parent.children.find(KeyOf(leaf.tokens)));
  --num_blocks_;
  Settle(parent);
}

// After a node lost a pin or a child: it may be evictable now, or a root that nobody needs.
void PrefixTree::Settle(Node& node) {
  if (IsEvictable(node)) evictable_.emplace(node.last_use, &node);
  if (node.parent == nullptr && node.pins == 0 && node.children.empty()) roots_.erase(roots_.find(node.salt));
}

void PrefixTree::Touch(Node& node) {
  const bool listed = evictable_.erase({node.last_use, &node}) > 0;
  node.last_use = ++uses_;
  if (listed) evictable_.emplace(node.last_use, &node);
}

void PrefixTree::AddPin(Node& node) {
  evictable_.erase({node.last_use, &node});
  ++node.pins;
}

void PrefixTree::DropPin(Node& node) {
  node.last_use = ++uses_;  // pinned until now, hence not listed
  --node.pins;
  Settle(node);
}

PrefixTree::Key PrefixTree::KeyOf(std::span<const int32_t> tokens) {
  return Key(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
}

PrefixTree::Node* PrefixTree::RootOf(const std::string& salt) {
  std::unique_ptr<Node>& root = roots_[salt];
  if (root == nullptr) {
    root = std::make_unique<Node>();
    root->salt = salt;
  }
  return root.get();
}

// The child for block `index` of `tokens`, if that block is whole and known.
const PrefixTree::Node* PrefixTree::ChildOf(const Node& node, std::span<const int32_t> tokens, int64_t index) const {
  if ((index + 1) * block_tokens_ > static_cast<int64_t>(tokens.size())) return nullptr;
  const auto child = node.children.find(KeyOf(tokens.subspan(index * block_tokens_, block_tokens_)));
  return child == node.children.end() ? nullptr : child->second.get();
}

absl::Status PrefixTree::CheckInvariants() const {
  int64_t blocks = 0;
  size_t evictable = 0;
  for (const auto& [salt, root] : roots_) {
    if (absl::Status status = CheckSubtree(*root, blocks, evictable); !status.ok()) return status;
  }
  if (blocks == num_blocks_ && evictable == evictable_.size()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("prefix tree: found ", blocks, " blocks, counted ", num_blocks_, "; found ",
                                          evictable, " evictable, listed ", evictable_.size()));
}

absl::Status PrefixTree::CheckSubtree(const Node& root, int64_t& blocks, size_t& evictable) const {
  std::vector<const Node*> open = {&root};
  while (!open.empty()) {
    const Node& node = *open.back();
    open.pop_back();
    blocks += node.parent != nullptr;
    evictable += IsEvictable(node) && evictable_.contains({node.last_use, const_cast<Node*>(&node)});
    if (node.parent == nullptr && node.pins == 0 && node.children.empty()) {
      return absl::InternalError("prefix tree: a root that nobody uses was kept");
    }
    for (const auto& [key, child] : node.children) {
      if (child->parent != &node || key != KeyOf(child->tokens)) {
        return absl::InternalError("prefix tree: a child is filed under another parent or other tokens");
      }
      if (node.parent != nullptr && node.block.idle() && !child->block.idle()) {
        return absl::InternalError(absl::StrCat("prefix tree: block ", node.block.id().value(), " is idle above block ",
                                                child->block.id().value(), ", which is in use"));
      }
      open.push_back(child.get());
    }
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::kv
