// SPDX-License-Identifier: Apache-2.0
// The children of a node of the prefix tree, found by their tokens.
//
//   ChildMap<Node> children;
//   children.Add(node);                              // by node->tokens
//   Node* child = children.Find(token_ids);
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace swiftcache::engine::kv {

/// Most nodes have one child, or none: that one needs no memory beside its pointer and no hash. Where more came, a hash
/// map has them until the last has gone. All tokens are compared: equal hashes are never equal tokens.
/// Thread-safety: as std::vector. Ownership: borrows the nodes, whose `tokens` (std::vector<int32_t>) stay as they were
/// while they are in it. Errors: none.
template <typename Node>
class ChildMap {
 public:
  bool empty() const { return only_ == nullptr && several_.empty(); }
  size_t size() const { return only_ != nullptr ? 1 : several_.size(); }
  /// nullptr: none has these tokens.
  Node* Find(std::span<const int32_t> tokens) const {
    if (only_ != nullptr) return std::ranges::equal(only_->tokens, tokens) ? only_ : nullptr;
    if (several_.empty()) return nullptr;
    const auto found = several_.find(KeyOf(tokens));
    return found == several_.end() ? nullptr : found->second;
  }
  /// REQUIRES: Find(node->tokens) == nullptr.
  void Add(Node* node) {
    if (empty()) {
      only_ = node;
      return;
    }
    if (Node* first = std::exchange(only_, nullptr)) several_.emplace(KeyOf(first->tokens), first);
    several_.emplace(KeyOf(node->tokens), node);
  }
  /// REQUIRES: it is in it.
  void Remove(const Node* node) {
    if (only_ == node) {
      only_ = nullptr;
    } else {
      several_.erase(several_.find(KeyOf(node->tokens)));
    }
  }
  void Clear() {
    only_ = nullptr;
    if (!several_.empty()) several_.clear();
  }
  /// Calls visit(Node*) for each, in no order.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    if (only_ != nullptr) visit(only_);
    for (const auto& [key, node] : several_) visit(node);
  }

 private:
  // A view of the node's token ids as bytes; equal bytes are equal ids.
  using Key = absl::string_view;
  static Key KeyOf(std::span<const int32_t> tokens) {
    return Key(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  }

  Node* only_ = nullptr;
  absl::flat_hash_map<Key, Node*> several_;
};

}  // namespace swiftcache::engine::kv
