// SPDX-License-Identifier: Apache-2.0
// Turns a piece of text into token ids: byte-level BPE, and SentencePiece-style BPE over characters.
//
//   ASSIGN_OR_RETURN(BpeModel model, BpeModel::Create(spec));
//   model.Encode("\u2581Hello", &scratch, &ids);
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gateway/text/pair_merges.h"
#include "gateway/text/tokenizer_spec.h"

namespace swiftcache::gateway::text {

/// Merging works on symbols, which are token ids. A character without a token is the symbol (vocabulary size + code
/// point) until the merges are done, because a token may contain characters that are no tokens themselves. A vocabulary
/// with scores is turned into ranked merges by Create: each way to split a token in two is a merge, ranked by the
/// token's score. Thread-safety: immutable after Create; each call has its own Scratch. Ownership: owns its tables.
/// Errors: Create: INVALID_ARGUMENT (a merge that gives no token).
class BpeModel {
 public:
  /// Reusable memory of one call or thread.
  struct Scratch {
    std::vector<int32_t> symbols;
    PairMerges::Scratch merges;
    bool last_was_unknown = false;  // fuse_unk looks across pieces
  };

  /// REQUIRES: sizes and ids of `spec` were checked; `bytes` holds the decoded bytes of each token.
  static absl::StatusOr<BpeModel> Create(const TokenizerSpec& spec, const std::vector<std::string>& bytes);

  /// Appends to `out`. REQUIRES: `piece` is valid UTF-8, fewer than 2^31 bytes.
  void Encode(std::string_view piece, Scratch* scratch, std::vector<int32_t>* out) const;

  /// As Tokenizer says it. Bytes in GPT-2's alphabet are never unknown.
  bool DropsUnknownText() const;

 private:
  explicit BpeModel(const TokenizerSpec& spec);
  absl::Status AddRankedMerges(const TokenizerSpec& spec);
  void AddScoredMerges(const TokenizerSpec& spec);
  void AddCuts(const std::string& token, int32_t id, int32_t rank);
  void FindByteTokens(const TokenizerSpec& spec, const std::vector<std::string>& bytes);
  void FindWholePieces(const TokenizerSpec& spec, const std::vector<std::string>& bytes);
  int32_t IdOf(std::string_view text) const;
  int32_t SymbolOf(std::string_view text) const;
  void Symbolize(std::string_view piece, std::vector<int32_t>* symbols) const;
  void EncodeByMerges(std::string_view piece, Scratch* scratch, std::vector<int32_t>* out) const;
  void AppendUnknown(char32_t character, Scratch* scratch, std::vector<int32_t>* out) const;

  bool byte_level_, byte_fallback_, fuse_unk_;
  int32_t vocab_size_;
  std::optional<int32_t> unk_id_;
  absl::flat_hash_map<std::string, int32_t> ids_;    // as spelled in the vocabulary
  absl::flat_hash_map<std::string, int32_t> whole_;  // pieces that are known to become one token
  std::array<int32_t, 256> byte_ids_;                // kNoToken where a byte has none
  PairMerges merges_;
};

}  // namespace swiftcache::gateway::text
