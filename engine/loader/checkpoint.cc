// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/checkpoint.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "common/base/status_macros.h"
#include "engine/loader/errors.h"
#include "engine/loader/gguf_config.h"
#include "engine/loader/gguf_tokenizer.h"
#include "engine/loader/gguf_weights.h"
#include "engine/loader/hf_config.h"
#include "engine/loader/hf_model_card.h"
#include "engine/loader/hf_weights.h"
#include "engine/loader/mapped_file.h"
#include "engine/loader/vocabulary.h"

namespace swiftcache::engine::loader {
namespace {

class GgufWeights final : public Weights {
 public:
  GgufWeights(MappedFile file, std::map<std::string, backend::WeightSource> tensors) : file_(std::move(file)) {
    tensors_ = std::move(tensors);
  }

 private:
  const MappedFile file_;
};

absl::StatusOr<ModelCard> ReadGgufCard(const GgufFile& gguf, const ModelConfig& config) {
  ModelCard card;
  card.vocab_size = config.vocab_size;
  ASSIGN_OR_RETURN(card.tokenizer, ReadGgufTokenizer(gguf.metadata()));
  ASSIGN_OR_RETURN(card.chat_template, ReadGgufChatTemplate(gguf.metadata()));
  const auto tokens = static_cast<int64_t>(card.tokenizer.tokens.size());
  if (tokens > config.vocab_size) {
    return Malformed(gguf.file(), "key tokenizer.ggml.tokens: found ", tokens, " tokens, want at most ",
                     config.vocab_size, " (rows of token_embd.weight)");
  }
  return card;
}

absl::StatusOr<Checkpoint> OpenGguf(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::Parse(file.bytes(), path));
  Checkpoint model;
  ASSIGN_OR_RETURN(model.config, ReadGgufConfig(gguf));
  ASSIGN_OR_RETURN(auto tensors, ViewGgufTensors(gguf, model.config));
  ASSIGN_OR_RETURN(model.card, ReadGgufCard(gguf, model.config));
  AddEndsBySpelling(model.card.tokenizer, model.config.eos_ids);
  model.weights = std::make_unique<GgufWeights>(std::move(file), std::move(tensors));
  return model;
}

absl::StatusOr<Checkpoint> OpenFolder(const std::string& folder) {
  const std::string config_path = folder + "/config.json", generation_path = folder + "/generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(config_path, ignored)) {
    return absl::NotFoundError(
        absl::StrCat(config_path, ": no such file, want a Hugging Face folder (a GGUF model is opened by its file)"));
  }
  ASSIGN_OR_RETURN(const MappedFile config, MappedFile::Open(config_path));
  Checkpoint model;
  ASSIGN_OR_RETURN(model.config, ParseHfConfig(config.text(), config_path));
  if (std::filesystem::exists(generation_path, ignored)) {
    ASSIGN_OR_RETURN(const MappedFile generation, MappedFile::Open(generation_path));
    RETURN_IF_ERROR(AddGenerationConfig(generation.text(), generation_path, model.config));
  }
  // Before the tokenizer: the embedding's rows then bound the vocabulary.
  ASSIGN_OR_RETURN(model.weights, OpenHfWeights(folder, model.config));
  ASSIGN_OR_RETURN(model.card, ReadHfModelCard(folder, model.config));
  // Of a chat model that was trained from a base, often the base's alone stand in the configuration.
  if (const auto eos = model.card.tokenizer.eos_id) AddEndOfSequence(*eos, model.config.eos_ids);
  return model;
}

}  // namespace

absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status info = std::filesystem::status(path, error);
  if (info.type() == std::filesystem::file_type::not_found) {
    return absl::NotFoundError(
        absl::StrCat(path, ": no such file or folder, want a GGUF file or a Hugging Face folder"));
  }
  if (error)
    return absl::ErrnoToStatus(error.value(), absl::StrCat(path, ": this user cannot examine it or a folder above it"));
  ASSIGN_OR_RETURN(Checkpoint model,
                   info.type() == std::filesystem::file_type::directory ? OpenFolder(path) : OpenGguf(path));
  MarkEndOfSequence(model.config.eos_ids, model.card.tokenizer);
  return model;
}

}  // namespace swiftcache::engine::loader
