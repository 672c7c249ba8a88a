// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/prefix_tree.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
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
PrefixTree::~PrefixTree() {
  while (!evictable_.empty()) RemoveLeaf(*evictable_.begin()->second);
}

PrefixTree::Match PrefixTree::Find(const std::string& salt, std::span<const int32_t> tokens, int64_t max_blocks,
                                   Holder holder) {
  Match match;
  Node* node = RootOf(salt);
  while (static_cast<int64_t>(match.blocks.size()) < max_blocks) {
    const Node* child = ChildOf(*node, tokens, match.blocks.size(), holder);
    if (child == nullptr) break;
    node = const_cast<Node*>(child);  // reached from our own root
    Touch(*node);
    match.blocks.push_back(node->block.Share(holder));
  }
  match.pin = Pin(this, node);
  return match;
}

PrefixTree::Length PrefixTree::Measure(const std::string& salt, std::span<const int32_t> tokens, int64_t max_blocks,
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

bool PrefixTree::Extend(Pin& pin, std::span<const int32_t> tokens, BlockRef& block) {
  CHECK_EQ(static_cast<int64_t>(tokens.size()), block_tokens_);
  Node& parent = *pin.node_;
  const auto found = parent.children.find(KeyOf(tokens));
  Node* child = found != parent.children.end() ? found->second.get() : Insert(parent, tokens, block);
  if (child->block.id() != block.id() && !block.GiveWayTo(child->block)) return false;
  Touch(*child);
  pin = Pin(this, child);
  return true;
}

PrefixTree::Node* PrefixTree::Insert(Node& parent, std::span<const int32_t> tokens, const BlockRef& block) {
  auto node = std::make_unique<Node>();
  node->parent = &parent;
  node->tokens.assign(tokens.begin(), tokens.end());
  node->block = block.Share(Holder::kCache);
  evictable_.erase({parent.last_use, &parent});
  Node* inserted = node.get();
  const auto id = static_cast<size_t>(block.id().value());
  if (id >= node_of_.size()) node_of_.resize(block.pool().id_limit());
  node_of_[id] = inserted;
  parent.children.emplace(KeyOf(inserted->tokens), std::move(node));
  ++num_blocks_;
  Settle(*inserted);
  return inserted;
}

int64_t PrefixTree::Evict(int64_t count) {
  int64_t evicted = 0;
  while (evicted < count && EvictOne()) ++evicted;
  return evicted;
}

bool PrefixTree::EvictOne(uint64_t before) {
  for (const auto& [last_use, node] : evictable_) {
    if (last_use >= before) return false;
    if (node->block.pool().moving(node->block.id())) continue;
    RemoveLeaf(*node);
    return true;
  }
  return false;
}

// Down to a leaf, and up again to each parent as it becomes one.
int64_t PrefixTree::Drop(BlockId id) {
  Node* const top = NodeOf(id);
  int64_t dropped = 0;
  for (Node* node = top; node != nullptr; ++dropped) {
    while (!node->children.empty()) node = node->children.begin()->second.get();
    CHECK_EQ(node->pins, 0) << "block " << node->block.id() << " is in use";
    Node* const next = node == top ? nullptr : node->parent;
    RemoveLeaf(*node);
    node = next;
  }
  return dropped;
}

std::vector<PrefixTree::Cold> PrefixTree::ColdestFirst(int64_t count, absl::FunctionRef<bool(BlockId)> wanted) const {
  std::vector<const Node*> nodes;
  for (const Node* node : node_of_) {
    if (node != nullptr && wanted(node->block.id())) nodes.push_back(node);
  }
  const auto end = nodes.begin() + std::min<int64_t>(count, static_cast<int64_t>(nodes.size()));
  std::partial_sort(nodes.begin(), end, nodes.end(), [](const Node* a, const Node* b) {
    return std::pair(!a->block.idle(), a->last_use) < std::pair(!b->block.idle(), b->last_use);
  });
  std::vector<Cold> coldest;
  for (auto node = nodes.begin(); node != end; ++node) coldest.push_back({(*node)->block.id(), (*node)->last_use});
  return coldest;
}

// Whatever leads to a block in use is in use, so putting ancestors first keeps those in use before the idle ones.
std::vector<BlockId> PrefixTree::HottestFirst(absl::FunctionRef<bool(BlockId)> wanted) const {
  std::vector<const Node*> nodes;
  for (const Node* node : node_of_) {
    if (node != nullptr && wanted(node->block.id())) nodes.push_back(node);
  }
  std::sort(nodes.begin(), nodes.end(), [](const Node* a, const Node* b) {
    return std::pair(!a->block.idle(), a->last_use) > std::pair(!b->block.idle(), b->last_use);
  });
  std::vector<BlockId> hottest;
  absl::flat_hash_set<const Node*> seen;
  for (const Node* node : nodes) {
    const size_t path = hottest.size();
    for (; node->parent != nullptr && seen.insert(node).second; node = node->parent) {
      if (wanted(node->block.id())) hottest.push_back(node->block.id());
    }
    std::reverse(hottest.begin() + path, hottest.end());
  }
  return hottest;
}

// Using a child is using its parent, so the parent inherits the later of both times.
void PrefixTree::RemoveLeaf(Node& leaf) {
  Node& parent = *leaf.parent;
  evictable_.erase({leaf.last_use, &leaf});
  parent.last_use = std::max(parent.last_use, leaf.last_use);
  node_of_[leaf.block.id().value()] = nullptr;
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

// The child for block `index` of `tokens`, if that block is whole and known, and the holder may have it.
const PrefixTree::Node* PrefixTree::ChildOf(const Node& node, std::span<const int32_t> tokens, int64_t index,
                                            Holder holder) const {
  if ((index + 1) * block_tokens_ > static_cast<int64_t>(tokens.size())) return nullptr;
  const auto child = node.children.find(KeyOf(tokens.subspan(index * block_tokens_, block_tokens_)));
  if (child == node.children.end()) return nullptr;
  const BlockRef& block = child->second->block;
  return block.pool().MayAttach(block.id(), holder) ? child->second.get() : nullptr;
}

absl::Status PrefixTree::CheckInvariants() const {
  int64_t blocks = 0;
  size_t evictable = 0;
  for (const auto& [salt, root] : roots_) {
    if (absl::Status status = CheckSubtree(*root, blocks, evictable); !status.ok()) return status;
  }
  const auto indexed = static_cast<int64_t>(node_of_.size()) - std::count(node_of_.begin(), node_of_.end(), nullptr);
  if (blocks == num_blocks_ && indexed == blocks && evictable == evictable_.size()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("prefix tree: found ", blocks, " blocks, counted ", num_blocks_, ", indexed ",
                                          indexed, "; found ", evictable, " evictable, listed ", evictable_.size()));
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
      if (NodeOf(child->block.id()) != child.get()) {
        return absl::InternalError(absl::StrCat("prefix tree: block ", child->block.id().value(), " is not indexed"));
      }
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
