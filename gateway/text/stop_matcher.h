// SPDX-License-Identifier: Apache-2.0
// Finds the first of many stop strings in a stream of bytes (Aho and Corasick, "Efficient string matching", 1975).
//
//   StopMatcher matcher({"\n\n", "END"});
//   for (char c : text) if (int64_t length = matcher.Push(c)) cut(length);
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gateway/text/byte_trie.h"

namespace swiftcache::gateway::text {

/// The first stop string is the one that is complete first; of several that are complete at once, the longest. Empty
/// strings and strings that are not UTF-8 never match. Linear in the text and in the summed length of the strings.
/// Thread-safety: none, one per stream. Ownership: a copy shares what was built of the strings, some 30 bytes for each
/// of theirs. Errors: none. Units: bytes.
class StopMatcher {
 public:
  explicit StopMatcher(const std::vector<std::string>& stop);

  /// The length of the stop string that ends with this byte; 0: none does.
  int64_t Push(char byte);
  /// How many of the last bytes may yet begin a stop string.
  int64_t pending() const { return strings_->states[state_].depth; }
  bool empty() const { return strings_->trie.empty(); }

 private:
  struct State {
    ByteTrie::Node fallback = ByteTrie::kRoot;  // the longest proper suffix that begins a stop string
    int32_t depth = 0;
    int32_t match = 0;  // length of the longest stop string that ends here
  };
  struct Strings {
    explicit Strings(const std::vector<std::string>& stop);
    ByteTrie::Node Next(ByteTrie::Node state, uint8_t byte) const;
    void LinkFallbacks();

    ByteTrie trie;  // value: length of the stop string
    std::vector<State> states;
  };

  std::shared_ptr<const Strings> strings_;  // of all copies
  ByteTrie::Node state_ = ByteTrie::kRoot;
};

}  // namespace swiftcache::gateway::text
