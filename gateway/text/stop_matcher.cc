// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/stop_matcher.h"

#include "common/base/utf8.h"

namespace swiftcache::gateway::text {

StopMatcher::StopMatcher(const std::vector<std::string>& stop) {
  for (const std::string& s : stop) {
    if (!s.empty() && IsValidUtf8(s)) trie_.Insert(s, static_cast<int32_t>(s.size()));
  }
  states_.resize(trie_.size());
  LinkFallbacks();
}

ByteTrie::Node StopMatcher::Next(ByteTrie::Node state, uint8_t byte) const {
  while (true) {
    const ByteTrie::Node child = trie_.Child(state, byte);
    if (child != ByteTrie::kNone || state == ByteTrie::kRoot) return child;  // kNone is the root
    state = states_[state].fallback;
  }
}

/// Breadth first, because a state's fallback is shorter than the state.
void StopMatcher::LinkFallbacks() {
  std::vector<ByteTrie::Node> order = {ByteTrie::kRoot};
  order.reserve(trie_.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const ByteTrie::Node parent = order[i];
    for (ByteTrie::Node child = trie_.first_child(parent); child != ByteTrie::kNone;
         child = trie_.next_sibling(child)) {
      State& state = states_[child];
      state.depth = states_[parent].depth + 1;
      if (parent != ByteTrie::kRoot) state.fallback = Next(states_[parent].fallback, trie_.byte(child));
      const bool ends_here = trie_.value(child) != ByteTrie::kNoValue;
      state.match = ends_here ? state.depth : states_[state.fallback].match;
      order.push_back(child);
    }
  }
}

int64_t StopMatcher::Push(char byte) {
  state_ = Next(state_, static_cast<uint8_t>(byte));
  return states_[state_].match;
}

}  // namespace swiftcache::gateway::text
