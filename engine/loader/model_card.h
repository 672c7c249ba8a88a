// SPDX-License-Identifier: Apache-2.0
// What the gateway needs of a model to handle text: vocabulary, merges, pre-tokeniser, chat template. The engine sends
// it and never uses it itself. A plain struct with the fields of proto ModelCard, where their meaning is written down.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace swiftcache::engine::loader {

enum class TokenizerKind { kByteLevelBpe, kSentencePieceBpe };
enum class TokenType { kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte };
enum class Normalizer { kNone, kNfc };

struct PreTokenizerStep {
  enum class Kind { kSplitRegex, kIndividualDigits };
  Kind kind = Kind::kSplitRegex;
  std::string regex;
};

struct AddedToken {
  int32_t id = 0;
  bool special = false, lstrip = false, rstrip = false, single_word = false, normalized = false;
};

struct TokenizerSpec {
  TokenizerKind kind = TokenizerKind::kByteLevelBpe;
  std::vector<std::string> tokens;
  std::vector<TokenType> token_types;
  std::vector<float> scores;
  std::vector<std::pair<int32_t, int32_t>> merges;
  std::vector<PreTokenizerStep> pre_tokenizer;
  Normalizer normalizer = Normalizer::kNone;
  std::vector<AddedToken> added_tokens;
  bool add_space_prefix = false, byte_fallback = false, ignore_merges = false, add_bos = false, add_eos = false;
  std::optional<int32_t> bos_id, eos_id, unk_id;
  bool fuse_unk = false, remove_extra_whitespaces = false, escape_whitespaces = false, space_prefix_first_only = false;
};

struct ModelCard {
  TokenizerSpec tokenizer;
  std::string chat_template;
  int64_t vocab_size = 0;
};

}  // namespace swiftcache::engine::loader
