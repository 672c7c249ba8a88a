// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/gguf_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "engine/loader/errors.h"
#include "engine/loader/pre_tokenizers.h"
#include "engine/loader/vocabulary.h"

namespace swiftcache::engine::loader {
namespace {

constexpr char kTokens[] = "tokenizer.ggml.tokens";
constexpr char kTokenTypes[] = "tokenizer.ggml.token_type";
constexpr char kScores[] = "tokenizer.ggml.scores";
constexpr char kMerges[] = "tokenizer.ggml.merges";
constexpr char kPre[] = "tokenizer.ggml.pre";

// Ends of texts, of turns and of messages; then what stands between the files of a repository and in the place of what is
// missing, behind which a model that completes code goes on with something else. Those of llama.cpp, without the ones of
// architectures that are not loaded here, which each have exceptions.
constexpr std::string_view kEnds[] = {"<|endoftext|>",
                                      "<|end_of_text|>",
                                      "<\uff5cend\u2581of\u2581sentence\uff5c>",
                                      "</s>",
                                      "<eos>",
                                      "[EOS]",
                                      "<|im_end|>",
                                      "<|end|>",
                                      "<|eot_id|>",
                                      "<EOT>",
                                      "_<EOT>",
                                      "[EOT]",
                                      "<end_of_turn>",
                                      "<end_of_utterance>",
                                      "<|eom_id|>",
                                      "<|fim_pad|>",
                                      "<fim-pad>",
                                      "<fim_pad>",
                                      "<PAD>",
                                      "[PAD]",
                                      "<|fim_repo|>",
                                      "<|repo_name|>",
                                      "<fim-repo>",
                                      "<REPO>",
                                      "<reponame>",
                                      "<|file_sep|>"};

absl::Status ReadTokens(const GgufMetadata& metadata, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(const auto tokens, metadata.Strings(kTokens));
  if (!tokens || tokens->empty())
    return Malformed(metadata.file(), "key ", kTokens, " is missing or empty, want tokens");
  spec.tokens.assign(tokens->begin(), tokens->end());
  return absl::OkStatus();
}

std::optional<TokenType> TokenTypeOf(int32_t number) {
  switch (number) {
    case 0:  // undefined
    case 1:
      return TokenType::kNormal;
    case 2:
      return TokenType::kUnknown;
    case 3:
      return TokenType::kControl;
    case 4:
      return TokenType::kUserDefined;
    case 5:
      return TokenType::kUnused;
    case 6:
      return TokenType::kByte;
    default:
      return std::nullopt;
  }
}

absl::Status WantOnePerToken(const GgufMetadata& metadata, const char* key, size_t found, size_t tokens) {
  if (found == tokens) return absl::OkStatus();
  return Malformed(metadata.file(), "key ", key, ": found ", found, " elements, want ", tokens, " (one per token)");
}

absl::Status ReadTokenTypes(const GgufMetadata& metadata, TokenizerSpec& spec) {
  spec.token_types.assign(spec.tokens.size(), TokenType::kNormal);
  ASSIGN_OR_RETURN(const auto numbers, metadata.Ints(kTokenTypes));
  if (!numbers) return absl::OkStatus();
  RETURN_IF_ERROR(WantOnePerToken(metadata, kTokenTypes, numbers->size(), spec.tokens.size()));
  for (size_t i = 0; i < numbers->size(); ++i) {
    const std::optional<TokenType> type = TokenTypeOf((*numbers)[i]);
    if (!type) {
      return Malformed(metadata.file(), "key ", kTokenTypes, ": element ", i, " is ", (*numbers)[i], ", want 0 to 6");
    }
    if (*type == TokenType::kByte && !IsByteToken(spec.tokens[i])) {
      return Malformed(metadata.file(), "key ", kTokens, ": token ", i, " of type byte is ", Quoted(spec.tokens[i]),
                       ", want \"<0xNN>\"");
    }
    spec.token_types[i] = *type;
  }
  return absl::OkStatus();
}

// Tokens that are found in text before the model's own rules run, as llama.cpp does.
void CollectAddedTokens(TokenizerSpec& spec) {
  for (size_t i = 0; i < spec.tokens.size(); ++i) {
    const TokenType type = spec.token_types[i];
    const bool special = type == TokenType::kControl || type == TokenType::kUnknown;
    if (spec.tokens[i].empty() || (!special && type != TokenType::kUserDefined)) continue;
    spec.added_tokens.push_back({.id = static_cast<int32_t>(i), .special = special});
  }
}

absl::Status ReadSpecialIds(const GgufMetadata& metadata, TokenizerSpec& spec) {
  const auto read = [&](const char* key, std::optional<int32_t>& id) -> absl::Status {
    ASSIGN_OR_RETURN(const std::optional<int64_t> found,
                     metadata.Int(key, 0, static_cast<int64_t>(spec.tokens.size()) - 1));
    if (found) id = static_cast<int32_t>(*found);
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(read("tokenizer.ggml.bos_token_id", spec.bos_id));
  RETURN_IF_ERROR(read("tokenizer.ggml.eos_token_id", spec.eos_id));
  return read("tokenizer.ggml.unknown_token_id", spec.unk_id);
}

// The file's setting; without one the default of the tokenizer's family, if the token exists.
absl::StatusOr<bool> ReadAddToken(const GgufMetadata& metadata, const char* key, std::optional<int32_t> id,
                                  bool by_default) {
  ASSIGN_OR_RETURN(const std::optional<bool> found, metadata.Bool(key));
  if (found.value_or(false) && !id) {
    return Malformed(metadata.file(), "key ", key, " is true, but there is no id of that token");
  }
  return found.value_or(by_default && id.has_value());
}

absl::Status ReadAddTokens(const GgufMetadata& metadata, bool bos_by_default, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(spec.add_bos, ReadAddToken(metadata, "tokenizer.ggml.add_bos_token", spec.bos_id, bos_by_default));
  ASSIGN_OR_RETURN(spec.add_eos, ReadAddToken(metadata, "tokenizer.ggml.add_eos_token", spec.eos_id, false));
  return absl::OkStatus();
}

absl::Status ReadMerges(const GgufMetadata& metadata, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(const auto merges, metadata.Strings(kMerges));
  if (!merges) return Malformed(metadata.file(), "key ", kMerges, " is missing, want an array of strings");
  const TokenIds ids(spec.tokens);
  spec.merges.reserve(merges->size());
  for (size_t i = 0; i < merges->size(); ++i) {
    const auto parts = SplitMerge((*merges)[i]);
    if (!parts) {
      return Malformed(metadata.file(), "key ", kMerges, ": merge ", i, " is ", Quoted((*merges)[i]),
                       ", want two tokens with one space between");
    }
    ASSIGN_OR_RETURN(const auto pair, ids.Merge(metadata.file(), static_cast<int64_t>(i), parts->first, parts->second));
    spec.merges.push_back(pair);
  }
  return absl::OkStatus();
}

absl::Status ReadByteLevelBpe(const GgufMetadata& metadata, TokenizerSpec& spec) {
  spec.kind = TokenizerKind::kByteLevelBpe;
  ASSIGN_OR_RETURN(const std::optional<std::string_view> name, metadata.String(kPre));
  std::optional<NamedPreTokenizer> pre = FindPreTokenizer(name.value_or("default"));
  if (!pre) {
    return Unsupported(metadata.file(), "key ", kPre, ": pre-tokeniser ", Quoted(*name),
                       " is not known, want gpt-2, smollm, llama-bpe, qwen2 or another that is");
  }
  spec.pre_tokenizer = std::move(pre->steps);
  spec.normalizer = pre->normalizer;
  spec.ignore_merges = pre->ignore_merges;
  RETURN_IF_ERROR(ReadMerges(metadata, spec));
  return ReadAddTokens(metadata, pre->add_bos, spec);
}

absl::Status ReadScores(const GgufMetadata& metadata, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(auto scores, metadata.Floats(kScores));
  if (!scores) return Malformed(metadata.file(), "key ", kScores, " is missing, want an array of float32");
  RETURN_IF_ERROR(WantOnePerToken(metadata, kScores, scores->size(), spec.tokens.size()));
  for (size_t i = 0; i < scores->size(); ++i) {
    if (std::isfinite((*scores)[i])) continue;
    return Malformed(metadata.file(), "key ", kScores, ": element ", i, " is ", (*scores)[i], ", want a finite number");
  }
  spec.scores = std::move(*scores);
  return absl::OkStatus();
}

absl::Status ReadSentencePiece(const GgufMetadata& metadata, TokenizerSpec& spec) {
  spec.kind = TokenizerKind::kSentencePieceBpe;
  spec.escape_whitespaces = true;
  spec.fuse_unk = true;
  for (const TokenType type : spec.token_types) spec.byte_fallback |= type == TokenType::kByte;
  RETURN_IF_ERROR(ReadScores(metadata, spec));
  ASSIGN_OR_RETURN(const std::optional<bool> prefix, metadata.Bool("tokenizer.ggml.add_space_prefix"));
  spec.add_space_prefix = prefix.value_or(true);
  ASSIGN_OR_RETURN(const std::optional<bool> extra, metadata.Bool("tokenizer.ggml.remove_extra_whitespaces"));
  spec.remove_extra_whitespaces = extra.value_or(false);
  return ReadAddTokens(metadata, /*bos_by_default=*/true, spec);
}

}  // namespace

absl::StatusOr<TokenizerSpec> ReadGgufTokenizer(const GgufMetadata& metadata) {
  constexpr char kModel[] = "tokenizer.ggml.model";
  ASSIGN_OR_RETURN(const std::optional<std::string_view> model, metadata.String(kModel));
  if (!model) return Malformed(metadata.file(), "key ", kModel, " is missing, want \"gpt2\" or \"llama\"");
  TokenizerSpec spec;
  RETURN_IF_ERROR(ReadTokens(metadata, spec));
  RETURN_IF_ERROR(ReadTokenTypes(metadata, spec));
  RETURN_IF_ERROR(ReadSpecialIds(metadata, spec));
  CollectAddedTokens(spec);
  if (*model == "gpt2") {
    RETURN_IF_ERROR(ReadByteLevelBpe(metadata, spec));
  } else if (*model == "llama") {
    RETURN_IF_ERROR(ReadSentencePiece(metadata, spec));
  } else {
    return Unsupported(metadata.file(), "key ", kModel, ": found ", Quoted(*model), ", want \"gpt2\" or \"llama\"");
  }
  return spec;
}

void AddEndsBySpelling(const TokenizerSpec& spec, std::vector<int32_t>& eos_ids) {
  for (size_t i = 0; i < spec.tokens.size(); ++i) {
    const TokenType type = spec.token_types[i];
    if (type != TokenType::kControl && type != TokenType::kUserDefined) continue;
    if (std::find(std::begin(kEnds), std::end(kEnds), spec.tokens[i]) == std::end(kEnds)) continue;
    const auto id = static_cast<int32_t>(i);
    AddEndOfSequence(id, eos_ids);
  }
}

absl::StatusOr<std::string> ReadGgufChatTemplate(const GgufMetadata& metadata) {
  constexpr char kKey[] = "tokenizer.chat_template";
  ASSIGN_OR_RETURN(const std::optional<std::string_view> text, metadata.String(kKey));
  if (!text) return std::string();
  if (!IsValidUtf8(*text)) return Malformed(metadata.file(), "key ", kKey, " is not UTF-8");
  return std::string(*text);
}

}  // namespace swiftcache::engine::loader
