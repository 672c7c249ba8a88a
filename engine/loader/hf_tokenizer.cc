// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/hf_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "engine/loader/errors.h"
#include "engine/loader/hf_text_steps.h"
#include "engine/loader/json_document.h"
#include "engine/loader/vocabulary.h"

namespace swiftcache::engine::loader {
namespace {

using nlohmann::json;

absl::Status CheckModelType(const JsonObject& model) {
  ASSIGN_OR_RETURN(const std::optional<std::string> type, model.String("type"));  // older files have none
  if (type && *type != "BPE") {
    return Unsupported(model.file(), "key model.type: found ", Quoted(*type), ", want \"BPE\"");
  }
  ASSIGN_OR_RETURN(const std::optional<double> dropout, model.Double("dropout"));
  if (dropout.value_or(0) != 0) return Unsupported(model.file(), "key model.dropout: found ", *dropout, ", want null");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    ASSIGN_OR_RETURN(const std::optional<std::string> affix, model.String(key));
    if (affix && !affix->empty()) {
      return Unsupported(model.file(), "key model.", key, ": found ", Quoted(*affix), ", want null");
    }
  }
  return absl::OkStatus();
}

// Puts the token at its id; the vocabulary grows up to vocab_size.
absl::Status PlaceToken(const std::string& file, const std::string& token, int32_t id, TokenType type,
                        TokenizerSpec& spec) {
  const auto index = static_cast<size_t>(id);
  if (index >= spec.tokens.size()) {
    spec.tokens.resize(index + 1);
    spec.token_types.resize(index + 1, TokenType::kUnused);
  }
  if (spec.token_types[index] != TokenType::kUnused && spec.tokens[index] != token) {
    return Malformed(file, "id ", id, " belongs to ", Quoted(spec.tokens[index]), " and to ", Quoted(token),
                     ", want one token");
  }
  spec.tokens[index] = token;
  spec.token_types[index] = type;
  return absl::OkStatus();
}

absl::Status ReadVocabulary(const JsonObject& model, int64_t vocab_size, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(const JsonObject vocab, model.RequireObject("vocab"));
  for (const auto& [token, value] : vocab.value().items()) {
    const std::optional<int64_t> id = ToInt(value, 0, vocab_size - 1);
    if (!id) {
      return Malformed(model.file(), "key model.vocab: id of ", Quoted(token), ": found ", Describe(value),
                       ", want 0 to ", vocab_size - 1, " (vocab_size of the model)");
    }
    const bool byte = spec.byte_fallback && IsByteToken(token);
    RETURN_IF_ERROR(
        PlaceToken(model.file(), token, static_cast<int32_t>(*id), byte ? TokenType::kByte : TokenType::kNormal, spec));
  }
  if (spec.tokens.empty()) return Malformed(model.file(), "key model.vocab is empty, want tokens");
  return absl::OkStatus();
}

absl::StatusOr<std::pair<std::string_view, std::string_view>> MergeParts(const std::string& file, size_t index,
                                                                         const json& merge) {
  if (merge.is_string()) {
    if (const auto parts = SplitMerge(merge.get_ref<const std::string&>())) return *parts;
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair<std::string_view, std::string_view>(merge[0].get_ref<const std::string&>(),
                                                         merge[1].get_ref<const std::string&>());
  }
  return Malformed(file, "key model.merges: merge ", index, " is ", Describe(merge), ", want [\"left\", \"right\"]");
}

absl::Status ReadMerges(const JsonObject& model, const TokenIds& ids, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(const json* merges, model.RequireArray("merges"));
  spec.merges.reserve(merges->size());
  for (size_t i = 0; i < merges->size(); ++i) {
    ASSIGN_OR_RETURN(const auto parts, MergeParts(model.file(), i, (*merges)[i]));
    ASSIGN_OR_RETURN(const auto pair, ids.Merge(model.file(), static_cast<int64_t>(i), parts.first, parts.second));
    spec.merges.push_back(pair);
  }
  return absl::OkStatus();
}

absl::Status ReadAddedToken(const JsonObject& token, int64_t vocab_size, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(const int64_t id, token.RequireInt("id", 0, vocab_size - 1));
  ASSIGN_OR_RETURN(const std::string content, token.RequireString("content"));
  if (content.empty()) return token.Wrong("content", "text");
  AddedToken added{.id = static_cast<int32_t>(id)};
  ASSIGN_OR_RETURN(added.special, token.Flag("special"));
  ASSIGN_OR_RETURN(added.lstrip, token.Flag("lstrip"));
  ASSIGN_OR_RETURN(added.rstrip, token.Flag("rstrip"));
  ASSIGN_OR_RETURN(added.single_word, token.Flag("single_word"));
  ASSIGN_OR_RETURN(added.normalized, token.Flag("normalized"));
  spec.added_tokens.push_back(added);
  return PlaceToken(token.file(), content, added.id, added.special ? TokenType::kControl : TokenType::kUserDefined,
                    spec);
}

absl::Status ReadAddedTokens(const JsonObject& root, int64_t vocab_size, TokenizerSpec& spec) {
  if (root.Find("added_tokens") == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const json* tokens, root.RequireArray("added_tokens"));
  for (size_t i = 0; i < tokens->size(); ++i) {
    ASSIGN_OR_RETURN(const JsonObject token,
                     JsonObject::Of((*tokens)[i], root.file(), absl::StrCat("added_tokens[", i, "]")));
    RETURN_IF_ERROR(ReadAddedToken(token, vocab_size, spec));
  }
  return absl::OkStatus();
}

absl::Status ReadModelFlags(const JsonObject& model, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(spec.byte_fallback, model.Flag("byte_fallback"));
  ASSIGN_OR_RETURN(spec.fuse_unk, model.Flag("fuse_unk"));
  ASSIGN_OR_RETURN(spec.ignore_merges, model.Flag("ignore_merges"));
  return absl::OkStatus();
}

absl::Status ReadUnknown(const JsonObject& model, const TokenIds& ids, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(const std::optional<std::string> unknown, model.String("unk_token"));
  if (!unknown) return absl::OkStatus();
  spec.unk_id = ids.Find(*unknown);
  if (!spec.unk_id) return model.Wrong("unk_token", "a token of the vocabulary");
  TokenType& type = spec.token_types[static_cast<size_t>(*spec.unk_id)];
  if (type == TokenType::kNormal) type = TokenType::kUnknown;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseHfTokenizer(std::string_view text, const std::string& file, int64_t vocab_size) {
  ASSIGN_OR_RETURN(const json document, ParseJson(text, file));
  ASSIGN_OR_RETURN(const JsonObject root, JsonObject::Of(document, file, ""));
  ASSIGN_OR_RETURN(const JsonObject model, root.RequireObject("model"));
  TokenizerSpec spec;
  RETURN_IF_ERROR(CheckModelType(model));
  RETURN_IF_ERROR(ReadModelFlags(model, spec));
  RETURN_IF_ERROR(ReadVocabulary(model, vocab_size, spec));
  RETURN_IF_ERROR(ReadAddedTokens(root, vocab_size, spec));
  const TokenIds ids(spec.tokens);
  RETURN_IF_ERROR(ReadMerges(model, ids, spec));
  RETURN_IF_ERROR(ReadUnknown(model, ids, spec));
  RETURN_IF_ERROR(ReadTextSteps(root, spec));
  RETURN_IF_ERROR(ReadPostProcessor(root, spec));
  return spec;
}

}  // namespace swiftcache::engine::loader
