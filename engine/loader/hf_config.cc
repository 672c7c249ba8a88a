// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/hf_config.h"

#include <optional>
#include <vector>

#include "common/base/status_macros.h"
#include "engine/loader/errors.h"
#include "engine/loader/json_document.h"
#include "engine/loader/vocabulary.h"

namespace swiftcache::engine::loader {
namespace {

using nlohmann::json;

struct NamedArchitecture {
  const char* class_name;
  const char* model_type;
  Architecture architecture;
  std::optional<int64_t> default_window;  // transformers' default, where one is in use
};

// Mistral is Llama where its sliding window is not in use, which is checked.
constexpr NamedArchitecture kArchitectures[] = {{"LlamaForCausalLM", "llama", Architecture::kLlama, {}},
                                                {"MistralForCausalLM", "mistral", Architecture::kLlama, 4096},
                                                {"Qwen2ForCausalLM", "qwen2", Architecture::kQwen2, 4096},
                                                {"Qwen3ForCausalLM", "qwen3", Architecture::kQwen3, 4096}};

absl::StatusOr<NamedArchitecture> ReadArchitecture(const JsonObject& root) {
  constexpr char kWanted[] = "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM or Qwen3ForCausalLM";
  ASSIGN_OR_RETURN(const std::optional<std::string> model_type, root.String("model_type"));
  const json* classes = root.Find("architectures");
  if (classes != nullptr && !classes->is_array()) return root.Wrong("architectures", "an array of one class name");
  if (classes != nullptr && !classes->empty()) {
    const json& first = classes->front();
    for (const NamedArchitecture& known : kArchitectures) {
      if (first.is_string() && first.get_ref<const std::string&>() == known.class_name) return known;
    }
    return Unsupported(root.file(), "key architectures: found ", Describe(first), ", want ", kWanted);
  }
  for (const NamedArchitecture& known : kArchitectures) {
    if (model_type && *model_type == known.model_type) return known;
  }
  if (model_type) return Unsupported(root.file(), "key model_type: found ", Quoted(*model_type), ", want ", kWanted);
  return Malformed(root.file(), "keys architectures and model_type are missing, want ", kWanted);
}

absl::Status ReadSizes(const JsonObject& root, ModelConfig& c) {
  ASSIGN_OR_RETURN(c.num_layers, root.RequireInt("num_hidden_layers", 1, INT32_MAX));
  ASSIGN_OR_RETURN(c.hidden_size, root.RequireInt("hidden_size", 1, INT32_MAX));
  ASSIGN_OR_RETURN(c.intermediate_size, root.RequireInt("intermediate_size", 1, INT32_MAX));
  ASSIGN_OR_RETURN(c.vocab_size, root.RequireInt("vocab_size", 1, INT32_MAX));
  ASSIGN_OR_RETURN(c.max_position, root.RequireInt("max_position_embeddings", 1, INT32_MAX));
  ASSIGN_OR_RETURN(const std::optional<double> eps, root.Double("rms_norm_eps"));
  if (!eps) return root.Wrong("rms_norm_eps", "a positive number");
  c.rms_eps = *eps;
  ASSIGN_OR_RETURN(c.tied_embeddings, root.Flag("tie_word_embeddings"));
  return absl::OkStatus();
}

absl::Status ReadHeads(const JsonObject& root, ModelConfig& c) {
  ASSIGN_OR_RETURN(c.num_heads, root.RequireInt("num_attention_heads", 1, INT32_MAX));
  ASSIGN_OR_RETURN(const std::optional<int64_t> kv, root.Int("num_key_value_heads", 1, INT32_MAX));
  c.num_kv_heads = kv.value_or(c.num_heads);
  ASSIGN_OR_RETURN(const std::optional<int64_t> head_dim, root.Int("head_dim", 1, INT32_MAX));
  if (!head_dim && c.architecture == Architecture::kQwen3) {
    c.head_dim = 128;  // Qwen3's own default does not follow from its hidden size
    return absl::OkStatus();
  }
  if (!head_dim && c.hidden_size % c.num_heads != 0) {
    return root.Wrong("num_attention_heads",
                      absl::StrCat("a divisor of hidden_size ", c.hidden_size, " (or head_dim)"));
  }
  c.head_dim = head_dim.value_or(c.hidden_size / c.num_heads);
  return absl::OkStatus();
}

absl::Status ReadLlama3(const JsonObject& scaling, ModelConfig& c) {
  const auto number = [&](const char* key, double& out) -> absl::Status {
    ASSIGN_OR_RETURN(const std::optional<double> found, scaling.Double(key));
    if (!found) return scaling.Wrong(key, "a number");
    out = *found;
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(number("low_freq_factor", c.rope_scaling.low_freq_factor));
  RETURN_IF_ERROR(number("high_freq_factor", c.rope_scaling.high_freq_factor));
  ASSIGN_OR_RETURN(c.rope_scaling.original_max_position,
                   scaling.RequireInt("original_max_position_embeddings", 1, INT32_MAX));
  return absl::OkStatus();
}

// `scaling` is rope_scaling (transformers 4) or rope_parameters (transformers 5).
absl::Status ReadScaling(const JsonObject& scaling, ModelConfig& c) {
  ASSIGN_OR_RETURN(std::optional<std::string> type, scaling.String("rope_type"));
  if (!type) {
    ASSIGN_OR_RETURN(type, scaling.String("type"));  // before transformers 4.45
  }
  if (!type) return scaling.Wrong("rope_type", "\"default\", \"linear\" or \"llama3\"");
  if (*type == "default") return absl::OkStatus();
  if (*type != "linear" && *type != "llama3") {
    return Unsupported(scaling.file(), "key ", scaling.Path("rope_type"), ": found ", Quoted(*type),
                       ", want \"default\", \"linear\" or \"llama3\"");
  }
  ASSIGN_OR_RETURN(const std::optional<double> factor, scaling.Double("factor"));
  if (!factor) return scaling.Wrong("factor", "a positive number");
  c.rope_scaling.factor = *factor;
  c.rope_scaling.kind = *type == "linear" ? RopeScaling::Kind::kLinear : RopeScaling::Kind::kLlama3;
  return *type == "linear" ? absl::OkStatus() : ReadLlama3(scaling, c);
}

absl::Status ReadRope(const JsonObject& root, ModelConfig& c) {
  ASSIGN_OR_RETURN(std::optional<double> theta, root.Double("rope_theta"));
  ASSIGN_OR_RETURN(std::optional<JsonObject> scaling, root.Object("rope_parameters"));
  if (scaling) {
    ASSIGN_OR_RETURN(const std::optional<double> inner, scaling->Double("rope_theta"));
    if (inner) theta = inner;
    ASSIGN_OR_RETURN(const std::optional<double> share, scaling->Double("partial_rotary_factor"));
    if (share.value_or(1.0) != 1.0) {
      return Unsupported(root.file(), "key rope_parameters.partial_rotary_factor: found ", *share, ", want 1");
    }
  } else {
    ASSIGN_OR_RETURN(scaling, root.Object("rope_scaling"));
  }
  c.rope_theta = theta.value_or(10000.0);  // transformers' default
  return scaling ? ReadScaling(*scaling, c) : absl::OkStatus();
}

absl::Status RefuseFlag(const JsonObject& root, const char* key) {
  ASSIGN_OR_RETURN(const bool set, root.Flag(key));
  if (!set) return absl::OkStatus();
  return Unsupported(root.file(), "key ", key, ": found true, want false");
}

absl::Status RefuseSlidingWindow(const JsonObject& root, const NamedArchitecture& named, const ModelConfig& c) {
  ASSIGN_OR_RETURN(const std::optional<bool> used, root.Bool("use_sliding_window"));
  ASSIGN_OR_RETURN(std::optional<int64_t> window, root.Int("sliding_window", 0, INT64_MAX));
  if (!root.value().contains("sliding_window")) window = named.default_window;  // null is none
  const bool on = used.value_or(c.architecture == Architecture::kLlama);        // Mistral has no switch
  if (!on || !window || *window >= c.max_position) return absl::OkStatus();
  return Unsupported(root.file(), "key sliding_window: found ", *window, ", want full attention over ", c.max_position,
                     " tokens");
}

// Features that would change the numbers if they were ignored.
absl::Status RefuseOtherFeatures(const JsonObject& root, const NamedArchitecture& named, const ModelConfig& c) {
  ASSIGN_OR_RETURN(const std::optional<std::string> activation, root.String("hidden_act"));
  if (activation && *activation != "silu" && *activation != "swish") {
    return Unsupported(root.file(), "key hidden_act: found ", Quoted(*activation), ", want \"silu\"");
  }
  if (const json* quantization = root.Find("quantization_config")) {
    const json method = quantization->is_object() ? quantization->value("quant_method", json()) : json();
    return Unsupported(root.file(), "key quantization_config: found method ", Describe(method),
                       ", want weights in F32, F16 or BF16 (or a GGUF file)");
  }
  RETURN_IF_ERROR(RefuseFlag(root, "attention_bias"));
  RETURN_IF_ERROR(RefuseFlag(root, "mlp_bias"));
  return RefuseSlidingWindow(root, named, c);
}

absl::Status AddEosIds(const JsonObject& root, ModelConfig& c) {
  const json* value = root.Find("eos_token_id");
  if (value == nullptr) return absl::OkStatus();
  const std::vector<json> ids = value->is_array() ? value->get<std::vector<json>>() : std::vector<json>{*value};
  for (const json& element : ids) {
    const std::optional<int64_t> id = ToInt(element, 0, c.vocab_size - 1);
    if (!id) {
      return Malformed(root.file(), "key eos_token_id: found ", Describe(element), ", want ids from 0 to ",
                       c.vocab_size - 1);
    }
    AddEndOfSequence(static_cast<int32_t>(*id), c.eos_ids);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ParseHfConfig(std::string_view text, const std::string& file) {
  ASSIGN_OR_RETURN(const json document, ParseJson(text, file));
  ASSIGN_OR_RETURN(const JsonObject root, JsonObject::Of(document, file, ""));
  ModelConfig config;
  ASSIGN_OR_RETURN(const NamedArchitecture named, ReadArchitecture(root));
  config.architecture = named.architecture;
  config.qkv_bias = config.architecture == Architecture::kQwen2;
  config.qk_norm = config.architecture == Architecture::kQwen3;
  RETURN_IF_ERROR(ReadSizes(root, config));
  RETURN_IF_ERROR(ReadHeads(root, config));
  RETURN_IF_ERROR(ReadRope(root, config));
  RETURN_IF_ERROR(RefuseOtherFeatures(root, named, config));
  RETURN_IF_ERROR(CheckModelConfig(config, file));
  RETURN_IF_ERROR(AddEosIds(root, config));
  return config;
}

absl::Status AddGenerationConfig(std::string_view text, const std::string& file, ModelConfig& config) {
  ASSIGN_OR_RETURN(const json document, ParseJson(text, file));
  ASSIGN_OR_RETURN(const JsonObject root, JsonObject::Of(document, file, ""));
  return AddEosIds(root, config);
}

}  // namespace swiftcache::engine::loader
