// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/hf_model_card.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "engine/loader/errors.h"
#include "engine/loader/hf_tokenizer.h"
#include "engine/loader/json_document.h"
#include "engine/loader/mapped_file.h"

namespace swiftcache::engine::loader {
namespace {

using nlohmann::json;

// A special token is written as its text or as an object with `content`. Its id is looked for among all tokens.
absl::Status ReadSpecialToken(const JsonObject& root, const std::string& key, const TokenizerSpec& spec,
                              std::optional<int32_t>& id) {
  const json* value = root.Find(key);
  if (value == nullptr) return absl::OkStatus();
  std::string text;
  if (value->is_object()) {
    ASSIGN_OR_RETURN(const JsonObject token, root.RequireObject(key));
    ASSIGN_OR_RETURN(text, token.RequireString("content"));
  } else {
    ASSIGN_OR_RETURN(text, root.RequireString(key));
  }
  const auto it = std::find(spec.tokens.begin(), spec.tokens.end(), text);
  if (it == spec.tokens.end()) {
    return Malformed(root.file(), "key ", key, ": found ", Quoted(text), ", want a token of tokenizer.json");
  }
  id = static_cast<int32_t>(it - spec.tokens.begin());
  return absl::OkStatus();
}

absl::Status ReadSpecialTokens(const JsonObject& root, TokenizerSpec& spec) {
  std::optional<int32_t> bos, eos;
  RETURN_IF_ERROR(ReadSpecialToken(root, "bos_token", spec, bos));
  RETURN_IF_ERROR(ReadSpecialToken(root, "eos_token", spec, eos));
  RETURN_IF_ERROR(ReadSpecialToken(root, "unk_token", spec, spec.unk_id));
  if (bos && spec.bos_id.value_or(*bos) != *bos) {
    return Unsupported(root.file(), "key bos_token: id ", *bos, ", but the post_processor of tokenizer.json puts id ",
                       *spec.bos_id, " before a text");
  }
  if (eos && spec.eos_id.value_or(*eos) != *eos) {
    return Unsupported(root.file(), "key eos_token: id ", *eos, ", but the post_processor of tokenizer.json puts id ",
                       *spec.eos_id, " behind a text");
  }
  if (bos) spec.bos_id = bos;
  if (eos) spec.eos_id = eos;
  return absl::OkStatus();
}

// LlamaTokenizer rebuilds its post-processor from these two; the other classes leave it to tokenizer.json.
absl::Status ReadAddTokens(const JsonObject& root, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(const std::optional<std::string> name, root.String("tokenizer_class"));
  if (!name || (*name != "LlamaTokenizer" && *name != "LlamaTokenizerFast")) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::optional<bool> bos, root.Bool("add_bos_token"));
  ASSIGN_OR_RETURN(const std::optional<bool> eos, root.Bool("add_eos_token"));
  spec.add_bos = bos.value_or(spec.add_bos) && spec.bos_id.has_value();
  spec.add_eos = eos.value_or(spec.add_eos) && spec.eos_id.has_value();
  return absl::OkStatus();
}

// One template, or a list of named ones of which "default" counts.
absl::Status ReadChatTemplate(const JsonObject& root, std::string& chat_template) {
  const json* value = root.Find("chat_template");
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_array()) {
    ASSIGN_OR_RETURN(chat_template, root.RequireString("chat_template"));
    return absl::OkStatus();
  }
  for (size_t i = 0; i < value->size(); ++i) {
    ASSIGN_OR_RETURN(const JsonObject entry,
                     JsonObject::Of((*value)[i], root.file(), absl::StrCat("chat_template[", i, "]")));
    ASSIGN_OR_RETURN(const std::string name, entry.RequireString("name"));
    if (name != "default") continue;
    ASSIGN_OR_RETURN(chat_template, entry.RequireString("template"));
  }
  return absl::OkStatus();
}

absl::Status AddTemplateFile(const std::string& path, ModelCard& card) {
  if (!FileExists(path)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (!IsValidUtf8(file.text())) return Malformed(path, "not UTF-8");
  card.chat_template = std::string(file.text());
  return absl::OkStatus();
}

}  // namespace

absl::Status AddTokenizerConfig(std::string_view text, const std::string& file, ModelCard& card) {
  ASSIGN_OR_RETURN(const json document, ParseJson(text, file));
  ASSIGN_OR_RETURN(const JsonObject root, JsonObject::Of(document, file, ""));
  RETURN_IF_ERROR(ReadSpecialTokens(root, card.tokenizer));
  RETURN_IF_ERROR(ReadAddTokens(root, card.tokenizer));
  return ReadChatTemplate(root, card.chat_template);
}

absl::StatusOr<ModelCard> ReadHfModelCard(const std::string& folder, const ModelConfig& config) {
  ModelCard card;
  card.vocab_size = config.vocab_size;
  const std::string tokenizer_path = folder + "/tokenizer.json";
  ASSIGN_OR_RETURN(const MappedFile tokenizer, MappedFile::Open(tokenizer_path));
  ASSIGN_OR_RETURN(card.tokenizer, ParseHfTokenizer(tokenizer.text(), tokenizer_path, config.vocab_size));
  const std::string config_path = folder + "/tokenizer_config.json";
  if (FileExists(config_path)) {
    ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(config_path));
    RETURN_IF_ERROR(AddTokenizerConfig(file.text(), config_path, card));
  }
  RETURN_IF_ERROR(AddTemplateFile(folder + "/chat_template.jinja", card));
  const bool known =
      !config.eos_ids.empty() && config.eos_ids.front() < static_cast<int64_t>(card.tokenizer.tokens.size());
  if (!card.tokenizer.eos_id && known) card.tokenizer.eos_id = config.eos_ids.front();
  return card;
}

}  // namespace swiftcache::engine::loader
