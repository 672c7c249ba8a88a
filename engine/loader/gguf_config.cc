// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/gguf_config.h"

#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status_macros.h"
#include "engine/loader/errors.h"
#include "engine/loader/vocabulary.h"

namespace swiftcache::engine::loader {
namespace {

absl::StatusOr<Architecture> ReadArchitecture(const GgufMetadata& metadata) {
  constexpr char kKey[] = "general.architecture";
  ASSIGN_OR_RETURN(const std::optional<std::string_view> name, metadata.String(kKey));
  if (!name) return Malformed(metadata.file(), "key ", kKey, " is missing, want \"llama\", \"qwen2\" or \"qwen3\"");
  if (*name == "llama") return Architecture::kLlama;
  if (*name == "qwen2") return Architecture::kQwen2;
  if (*name == "qwen3") return Architecture::kQwen3;
  return Unsupported(metadata.file(), "key ", kKey, ": found ", Quoted(*name),
                     ", want \"llama\", \"qwen2\" or \"qwen3\"");
}

/// Reads the keys of one architecture: "llama.block_count" and so on.
class ConfigReader {
 public:
  ConfigReader(const GgufFile& gguf, Architecture architecture)
      : gguf_(gguf), metadata_(gguf.metadata()), prefix_(PrefixOf(architecture)) {
    config_.architecture = architecture;
    config_.qkv_bias = architecture == Architecture::kQwen2;
    config_.qk_norm = architecture == Architecture::kQwen3;
  }

  absl::StatusOr<ModelConfig> Read() {
    RETURN_IF_ERROR(ReadSizes());
    RETURN_IF_ERROR(ReadHeads());
    RETURN_IF_ERROR(ReadVocabulary());
    RETURN_IF_ERROR(ReadRope());
    RETURN_IF_ERROR(ReadRopeFactors());
    RETURN_IF_ERROR(RefuseOtherFeatures());
    RETURN_IF_ERROR(ReadEos());
    RETURN_IF_ERROR(CheckModelConfig(config_, metadata_.file()));
    return config_;
  }

 private:
  static const char* PrefixOf(Architecture architecture) {
    switch (architecture) {
      case Architecture::kLlama:
        return "llama.";
      case Architecture::kQwen2:
        return "qwen2.";
      case Architecture::kQwen3:
        return "qwen3.";
    }
    return "";
  }

  std::string Key(const char* name) const { return absl::StrCat(prefix_, name); }

  absl::Status ReadSizes() {
    ASSIGN_OR_RETURN(config_.num_layers, metadata_.RequireInt(Key("block_count"), 1, INT32_MAX));
    ASSIGN_OR_RETURN(config_.max_position, metadata_.RequireInt(Key("context_length"), 1, INT32_MAX));
    ASSIGN_OR_RETURN(config_.hidden_size, metadata_.RequireInt(Key("embedding_length"), 1, INT32_MAX));
    ASSIGN_OR_RETURN(config_.intermediate_size, metadata_.RequireInt(Key("feed_forward_length"), 1, INT32_MAX));
    const std::string key = Key("attention.layer_norm_rms_epsilon");
    ASSIGN_OR_RETURN(const std::optional<double> eps, metadata_.Float(key));
    if (!eps) return Malformed(metadata_.file(), "key ", key, " is missing, want a float");
    config_.rms_eps = *eps;
    return absl::OkStatus();
  }

  absl::Status ReadHeads() {
    ASSIGN_OR_RETURN(config_.num_heads, metadata_.RequireInt(Key("attention.head_count"), 1, INT32_MAX));
    ASSIGN_OR_RETURN(const std::optional<int64_t> kv,
                     metadata_.UniformInt(Key("attention.head_count_kv"), 1, INT32_MAX));
    config_.num_kv_heads = kv.value_or(config_.num_heads);
    ASSIGN_OR_RETURN(const std::optional<int64_t> head_dim, metadata_.Int(Key("attention.key_length"), 1, INT32_MAX));
    if (!head_dim && config_.hidden_size % config_.num_heads != 0) {
      return Malformed(metadata_.file(), "key ", Key("attention.head_count"), ": found ", config_.num_heads,
                       ", want a divisor of ", Key("embedding_length"), " ", config_.hidden_size, " (or ",
                       Key("attention.key_length"), ")");
    }
    config_.head_dim = head_dim.value_or(config_.hidden_size / config_.num_heads);
    RETURN_IF_ERROR(WantHeadDim("attention.value_length"));
    return WantHeadDim("rope.dimension_count");
  }

  absl::Status WantHeadDim(const char* name) {
    ASSIGN_OR_RETURN(const std::optional<int64_t> found, metadata_.Int(Key(name), 0, INT32_MAX));
    if (!found || *found == config_.head_dim) return absl::OkStatus();
    return Unsupported(metadata_.file(), "key ", Key(name), ": found ", *found, ", want the head size ",
                       config_.head_dim);
  }

  // The embedding's rows are the vocabulary; the metadata must not contradict them.
  absl::Status ReadVocabulary() {
    ASSIGN_OR_RETURN(const std::optional<int64_t> found, metadata_.Int(Key("vocab_size"), 1, INT32_MAX));
    const auto embedding = gguf_.tensors().find("token_embd.weight");
    if (embedding == gguf_.tensors().end() || embedding->second.dims.size() != 2) {
      return Malformed(metadata_.file(), "tensor token_embd.weight is missing, want a matrix [vocabulary][",
                       config_.hidden_size, "]");
    }
    config_.vocab_size = embedding->second.dims[1];
    if (found && *found != config_.vocab_size) {
      return Malformed(metadata_.file(), "tensor token_embd.weight has ", config_.vocab_size, " rows, want ", *found,
                       " (key ", Key("vocab_size"), ")");
    }
    config_.tied_embeddings = !gguf_.tensors().contains("output.weight");
    return absl::OkStatus();
  }

  absl::Status ReadRope() {
    ASSIGN_OR_RETURN(const std::optional<double> theta, metadata_.Float(Key("rope.freq_base")));
    config_.rope_theta = theta.value_or(10000.0);
    ASSIGN_OR_RETURN(const std::optional<std::string_view> type, metadata_.String(Key("rope.scaling.type")));
    ASSIGN_OR_RETURN(std::optional<double> factor, metadata_.Float(Key("rope.scaling.factor")));
    if (!factor) {
      ASSIGN_OR_RETURN(factor, metadata_.Float(Key("rope.scale_linear")));  // older files
    }
    if (type && *type == "none") return absl::OkStatus();
    if (type && *type != "linear") {
      return Unsupported(metadata_.file(), "key ", Key("rope.scaling.type"), ": found ", Quoted(*type),
                         ", want \"none\" or \"linear\"");
    }
    if (!factor || *factor == 1.0) return absl::OkStatus();
    config_.rope_scaling.kind = RopeScaling::Kind::kLinear;
    config_.rope_scaling.factor = *factor;
    return absl::OkStatus();
  }

  absl::Status ReadRopeFactors() {
    const auto it = gguf_.tensors().find("rope_freqs.weight");
    if (it == gguf_.tensors().end()) return absl::OkStatus();
    const GgufTensor& tensor = it->second;
    const int64_t wanted = config_.head_dim / 2;
    if (tensor.dims.size() != 1 || tensor.dims[0] != wanted || tensor.format != backend::WeightFormat::kF32) {
      return Malformed(metadata_.file(), "tensor rope_freqs.weight: found ", NameOf(tensor.format), " [",
                       tensor.dims[0], tensor.dims.size() > 1 ? ", ..." : "", "], want F32 [", wanted, "]");
    }
    config_.rope_freq_factors.resize(static_cast<size_t>(wanted));
    std::memcpy(config_.rope_freq_factors.data(), tensor.data.data(), static_cast<size_t>(wanted) * sizeof(float));
    return absl::OkStatus();
  }

  // Features that would change the numbers if they were ignored.
  absl::Status RefuseOtherFeatures() const {
    ASSIGN_OR_RETURN(const std::optional<int64_t> experts, metadata_.Int(Key("expert_count"), 0, INT32_MAX));
    if (experts.value_or(0) > 0) {
      return Unsupported(metadata_.file(), "key ", Key("expert_count"), ": a mixture of ", *experts,
                         " experts, want a dense model");
    }
    ASSIGN_OR_RETURN(const std::optional<int64_t> window,
                     metadata_.UniformInt(Key("attention.sliding_window"), 0, INT32_MAX));
    if (window.value_or(0) > 0 && *window < config_.max_position) {
      return Unsupported(metadata_.file(), "key ", Key("attention.sliding_window"), ": found ", *window,
                         ", want full attention over ", config_.max_position, " tokens");
    }
    return absl::OkStatus();
  }

  absl::Status ReadEos() {
    for (const char* key :
         {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
      ASSIGN_OR_RETURN(const std::optional<int64_t> id, metadata_.Int(key, 0, config_.vocab_size - 1));
      if (id) AddEndOfSequence(static_cast<int32_t>(*id), config_.eos_ids);
    }
    return absl::OkStatus();
  }

  const GgufFile& gguf_;
  const GgufMetadata& metadata_;
  const std::string prefix_;
  ModelConfig config_;
};

}  // namespace

absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& gguf) {
  ASSIGN_OR_RETURN(const Architecture architecture, ReadArchitecture(gguf.metadata()));
  return ConfigReader(gguf, architecture).Read();
}

}  // namespace swiftcache::engine::loader
