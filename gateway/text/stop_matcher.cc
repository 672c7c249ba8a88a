// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/stop_matcher.h"

#include "common/base/utf8.h"

namespace swiftcache::gateway::text {

StopMatcher::StopMatcher(const std::vector<std::string>& stop) : strings_(std::make_shared<const Strings>(stop)) {}

StopMatcher::Strings::Strings(const std::vector<std::string>& stop) {
  for (const std::string& s : stop) {
    if (!s.empty() && IsValidUtf8(s)) trie.Insert(s, static_cast<int32_t>(s.size()));
  }
  states.resize(trie.size());
  LinkFallbacks();
}

ByteTrie::Node StopMatcher::Strings::Next(ByteTrie::Node state, uint8_t byte) const {
  while (true) {
    const ByteTrie::Node child = trie.Child(state, byte);
    if (child != ByteTrie::kNone || state == ByteTrie::kRoot) return child;  // kNone is the root
    state = states[state].fallback;
  }
}

/// Breadth first, because a state's fallback is shorter than the state.
void StopMatcher::Strings::LinkFallbacks() {
  std::vector<ByteTrie::Node> order = {ByteTrie::kRoot};
  order.reserve(trie.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const ByteTrie::Node parent = order[i];
    for (ByteTrie::Node child = trie.first_child(parent); child != ByteTrie::kNone; child = trie.next_sibling(child)) {
      State& state = states[child];
      state.depth = states[parent].depth + 1;
      if (parent != ByteTrie::kRoot) state.fallback = Next(states[parent].fallback, trie.byte(child));
      const bool ends_here = trie.value(child) != ByteTrie::kNoValue;
      state.match = ends_here ? state.depth : states[state.fallback].match;
      order.push_back(child);
    }
  }
}

int64_t StopMatcher::Push(char byte) {
  state_ = strings_->Next(state_, static_cast<uint8_t>(byte));
  return strings_->states[state_].match;
}

}  // namespace swiftcache::gateway::text
