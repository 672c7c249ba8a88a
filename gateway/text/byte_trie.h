// SPDX-License-Identifier: Apache-2.0
// A trie over byte strings; nodes are numbered in order of creation, so a parent's number is below its children's.
//
//   ByteTrie trie;
//   trie.Insert("</s>", 2);
//   ByteTrie::Node node = trie.Child(ByteTrie::kRoot, '<');
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace swiftcache::gateway::text {

/// Costs 16 bytes a node. A step costs at most one look at each sibling, of which there are at most 256.
/// Thread-safety: immutable once filled. Errors: none.
class ByteTrie {
 public:
  using Node = int32_t;
  static constexpr Node kRoot = 0;
  static constexpr Node kNone = 0;  // no child is the root
  static constexpr int32_t kNoValue = -1;

  ByteTrie() : nodes_(1) {}

  /// The first value inserted for a string stays. REQUIRES: value >= 0.
  void Insert(std::string_view bytes, int32_t value);
  Node Child(Node parent, uint8_t byte) const {
    if (parent == kRoot) return root_children_[byte];
    Node child = nodes_[parent].first_child;
    while (child != kNone && nodes_[child].byte != byte) child = nodes_[child].next_sibling;
    return child;
  }
  int32_t value(Node node) const { return nodes_[node].value; }
  Node first_child(Node node) const { return nodes_[node].first_child; }
  Node next_sibling(Node node) const { return nodes_[node].next_sibling; }
  uint8_t byte(Node node) const { return nodes_[node].byte; }
  int64_t size() const { return static_cast<int64_t>(nodes_.size()); }
  bool empty() const { return nodes_.size() == 1; }

 private:
  struct Entry {
    Node first_child = kNone;
    Node next_sibling = kNone;
    int32_t value = kNoValue;
    uint8_t byte = 0;
  };

  std::vector<Entry> nodes_;
  std::array<Node, 256> root_children_{};
};

}  // namespace swiftcache::gateway::text
