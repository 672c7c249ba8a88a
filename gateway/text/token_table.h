// SPDX-License-Identifier: Apache-2.0
// The bytes that each token stands for, and whether it is special.
//
//   TokenTable table(spec);
//   table.bytes()[262];        // " the"
//   table.IsSpecial(1);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gateway/text/tokenizer_spec.h"

namespace swiftcache::gateway::text {

/// Control, unknown and added tokens stand for their text as it is spelled; the others are decoded.
/// Thread-safety: immutable. Ownership: owns its strings. Errors: none.
class TokenTable {
 public:
  /// REQUIRES: CheckSpec(spec).ok().
  explicit TokenTable(const TokenizerSpec& spec);

  const std::vector<std::string>& bytes() const { return bytes_; }
  bool IsSpecial(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < special_.size() && special_[id]; }
  /// The tokens that are cut out of text before it is tokenised: the spec's, and by type those it does not list.
  const std::vector<AddedToken>& added() const { return added_; }

 private:
  void CollectAdded(const TokenizerSpec& spec);

  std::vector<std::string> bytes_;
  std::vector<bool> special_;
  std::vector<AddedToken> added_;
};

}  // namespace swiftcache::gateway::text
