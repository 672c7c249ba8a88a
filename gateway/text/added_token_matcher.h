// SPDX-License-Identifier: Apache-2.0
// Cuts the added tokens ("<|im_start|>") out of text before the text is tokenised.
//
//   AddedTokenMatcher matcher;
//   matcher.Add("<s>", {.id = 1, .special = true});
//   matcher.Split(text, [](std::string_view between, const AddedToken* token) { ... });
#pragma once

#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gateway/text/byte_trie.h"
#include "gateway/text/tokenizer_spec.h"

namespace swiftcache::gateway::text {

/// Takes the leftmost match, and the longest of the tokens that begin there.
/// Costs O(text x longest token). Thread-safety: immutable once filled. Errors: none. Units: bytes.
class AddedTokenMatcher {
 public:
  /// REQUIRES: `content` is not empty.
  void Add(std::string_view content, const AddedToken& token);

  /// Calls `part` for each run of text and the token after it (nullptr after the last); either may be missing, not
  /// both. REQUIRES: valid UTF-8.
  void Split(std::string_view text, absl::FunctionRef<void(std::string_view, const AddedToken*)> part) const;

 private:
  struct Match {
    const AddedToken* token = nullptr;
    int64_t begin = 0, end = 0;
  };
  Match LongestAt(std::string_view text, int64_t begin) const;

  ByteTrie trie_;  // value: index into tokens_
  std::vector<AddedToken> tokens_;
};

}  // namespace swiftcache::gateway::text
