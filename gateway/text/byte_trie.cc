// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/byte_trie.h"

namespace swiftcache::gateway::text {

void ByteTrie::Insert(std::string_view bytes, int32_t value) {
  Node node = kRoot;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    Node child = Child(node, byte);
    if (child == kNone) {
      child = static_cast<Node>(nodes_.size());
      nodes_.push_back({.next_sibling = nodes_[node].first_child, .byte = byte});
      nodes_[node].first_child = child;
      if (node == kRoot) root_children_[byte] = child;
    }
    node = child;
  }
  if (nodes_[node].value == kNoValue) nodes_[node].value = value;
}

}  // namespace swiftcache::gateway::text
