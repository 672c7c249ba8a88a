// SPDX-License-Identifier: Apache-2.0
// What both tokenizer readers need: token ids by spelling, ranked merges by ids, the end-of-sequence tokens.
//
//   const TokenIds ids(spec.tokens);
//   ASSIGN_OR_RETURN(spec.merges[i], ids.Merge(file, i, "Ġ", "t"));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/loader/model_card.h"

namespace swiftcache::engine::loader {

/// If two tokens have the same spelling, the first one is found.
/// Thread-safety: immutable. Ownership: borrows the spellings.
class TokenIds {
 public:
  explicit TokenIds(const std::vector<std::string>& tokens);
  std::optional<int32_t> Find(std::string_view token) const;
  /// The pair's ids. INVALID_ARGUMENT if a part, or the two put together, is not a token; names both and `index`.
  absl::StatusOr<std::pair<int32_t, int32_t>> Merge(const std::string& file, int64_t index, std::string_view left,
                                                    std::string_view right) const;

 private:
  std::unordered_map<std::string_view, int32_t> ids_;
};

/// Cuts "left right" at its one space; nothing if there is none, or more, or a side is empty.
std::optional<std::pair<std::string_view, std::string_view>> SplitMerge(std::string_view merge);

/// Whether a BYTE token is spelled "<0xNN>".
bool IsByteToken(std::string_view token);

/// One more id that ends an answer, unless it is there.
void AddEndOfSequence(int32_t id, std::vector<int32_t>& eos_ids);

/// Makes the tokens that end an answer control tokens, whatever the files call them (older conversions say normal or
/// user-defined, and llama.cpp overrides them too): their spelling is never text of an answer. Bytes and single
/// characters stay as they are: a prompt needs them, even if the model ends at a new line.
void MarkEndOfSequence(const std::vector<int32_t>& eos_ids, TokenizerSpec& spec);

}  // namespace swiftcache::engine::loader
