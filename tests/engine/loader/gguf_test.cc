// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "engine/backend/cpu/dequantize.h"
#include "engine/loader/gguf_config.h"
#include "engine/loader/gguf_file.h"
#include "engine/loader/gguf_tokenizer.h"
#include "engine/loader/gguf_weights.h"
#include "tests/engine/loader/gguf_builder.h"

namespace swiftcache::engine::loader {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Keeps the bytes that a parsed file borrows.
struct Parsed {
  explicit Parsed(std::string file) : bytes(std::move(file)) {
    gguf = GgufFile::Parse(std::as_bytes(std::span(bytes)), "a.gguf");
  }
  const std::string bytes;
  absl::StatusOr<GgufFile> gguf = absl::UnknownError("not parsed");
};

absl::Status ConfigError(const GgufBuilder& builder) {
  const Parsed parsed(builder.Bytes());
  EXPECT_TRUE(parsed.gguf.ok()) << parsed.gguf.status();
  return ReadGgufConfig(*parsed.gguf).status();
}

absl::StatusOr<TokenizerSpec> ReadTokenizer(const GgufBuilder& builder) {
  const Parsed parsed(builder.Bytes());
  EXPECT_TRUE(parsed.gguf.ok()) << parsed.gguf.status();
  return ReadGgufTokenizer(parsed.gguf->metadata());
}

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& words) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), testing::AllOf(HasSubstr("a.gguf"), HasSubstr(words)));
}

TEST(GgufFileTest, VersionsTwoAndThreeAreRead) {
  EXPECT_TRUE(Parsed(TinyGguf("llama").Bytes(2)).gguf.ok());
  EXPECT_TRUE(Parsed(TinyGguf("llama").Bytes(3)).gguf.ok());
  ExpectError(Parsed(TinyGguf("llama").Bytes(1)).gguf.status(), absl::StatusCode::kUnimplemented,
              "version 1, want 2 or 3");
}

TEST(GgufFileTest, EveryCutFileIsRefused) {
  const std::string whole = TinyGguf("llama").Bytes();
  const Parsed parsed(whole);
  ASSERT_TRUE(parsed.gguf.ok());
  // The padding behind the last tensor may go, nothing else.
  const int64_t needed = static_cast<int64_t>(whole.size()) - 31;
  for (int64_t size = 0; size < needed; size += 7) {
    const Parsed cut(whole.substr(0, static_cast<size_t>(size)));
    ASSERT_EQ(cut.gguf.status().code(), absl::StatusCode::kInvalidArgument) << size;
  }
}

TEST(GgufFileTest, AlignmentOfTheFileCounts) {
  GgufBuilder builder = TinyGguf("llama");
  builder.Set("general.alignment", uint32_t{128});
  EXPECT_TRUE(Parsed(builder.Bytes(3, 128)).gguf.ok());
  ExpectError(Parsed(builder.Bytes(3, 32)).gguf.status(), absl::StatusCode::kInvalidArgument,
              "multiple of the alignment 128");
}

TEST(GgufFileTest, UnsupportedTensorTypesAreNamed) {
  GgufBuilder builder = TinyGguf("llama");
  builder.AddTensor("blk.0.ffn_up.weight", {256, 8}, 10, std::string(1000, 'x'));  // Q2_K
  ExpectError(Parsed(builder.Bytes()).gguf.status(), absl::StatusCode::kUnimplemented, "GGML type number 10");
}

TEST(GgufConfigTest, SizesComeFromTheMetadataAndTheEmbedding) {
  const Parsed parsed(TinyGguf("llama").Bytes());
  const absl::StatusOr<ModelConfig> config = ReadGgufConfig(*parsed.gguf);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_layers, 1);
  EXPECT_EQ(config->head_dim, 4);
  EXPECT_EQ(config->num_kv_heads, 1);
  EXPECT_EQ(config->vocab_size, 6);
  EXPECT_EQ(config->rope_theta, 10000.0);
  EXPECT_EQ(config->rms_eps, static_cast<double>(1e-5f));
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_THAT(config->eos_ids, ElementsAre(0));
}

TEST(GgufConfigTest, ArchitecturesBringTheirParts) {
  for (const std::string arch : {"qwen2", "qwen3"}) {
    const Parsed parsed(TinyGguf(arch).Bytes());
    const absl::StatusOr<ModelConfig> config = ReadGgufConfig(*parsed.gguf);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->qkv_bias, arch == "qwen2");
    EXPECT_EQ(config->qk_norm, arch == "qwen3");
    EXPECT_TRUE(ViewGgufTensors(*parsed.gguf, *config).ok());
  }
}

TEST(GgufConfigTest, LinearRopeScalingIsRead) {
  GgufBuilder builder = TinyGguf("llama");
  builder.Set("llama.rope.scaling.type", "linear");
  builder.Set("llama.rope.scaling.factor", 4.0f);
  const Parsed parsed(builder.Bytes());
  const absl::StatusOr<ModelConfig> config = ReadGgufConfig(*parsed.gguf);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_scaling.kind, RopeScaling::Kind::kLinear);
  EXPECT_EQ(config->rope_scaling.factor, 4.0);
}

TEST(GgufConfigTest, Llama3ScalingComesAsFactors) {
  GgufBuilder builder = TinyGguf("llama");
  builder.AddF32("rope_freqs.weight", {2}, {1.0f, 8.0f});
  const Parsed parsed(builder.Bytes());
  const absl::StatusOr<ModelConfig> config = ReadGgufConfig(*parsed.gguf);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->rope_freq_factors, ElementsAre(1.0f, 8.0f));
  builder.AddF32("rope_freqs.weight", {2}, {1.0f, 0.0f});
  ExpectError(ConfigError(builder), absl::StatusCode::kInvalidArgument, "rope_freqs.weight is 0");
  builder.AddF32("rope_freqs.weight", {3}, {1.0f, 1.0f, 1.0f});
  ExpectError(ConfigError(builder), absl::StatusCode::kInvalidArgument, "want F32 [2]");
}

TEST(GgufConfigTest, UniformArraysStandForOneNumber) {
  GgufBuilder builder = TinyGguf("llama");
  builder.SetArray<int32_t>("llama.attention.head_count_kv", 5, {1, 1});
  EXPECT_TRUE(ConfigError(builder).ok());
  builder.SetArray<int32_t>("llama.attention.head_count_kv", 5, {1, 2});
  ExpectError(ConfigError(builder), absl::StatusCode::kUnimplemented, "layers of unlike sizes");
}

TEST(GgufConfigTest, FeaturesThatWouldChangeTheNumbersAreRefused) {
  GgufBuilder experts = TinyGguf("llama");
  experts.Set("llama.expert_count", uint32_t{8});
  ExpectError(ConfigError(experts), absl::StatusCode::kUnimplemented, "8 experts");
  GgufBuilder window = TinyGguf("llama");
  window.Set("llama.attention.sliding_window", uint32_t{16});
  ExpectError(ConfigError(window), absl::StatusCode::kUnimplemented, "sliding_window");
  GgufBuilder partial = TinyGguf("llama");
  partial.Set("llama.rope.dimension_count", uint32_t{2});
  ExpectError(ConfigError(partial), absl::StatusCode::kUnimplemented, "found 2, want the head size 4");
  GgufBuilder yarn = TinyGguf("llama");
  yarn.Set("llama.rope.scaling.type", "yarn");
  ExpectError(ConfigError(yarn), absl::StatusCode::kUnimplemented, "yarn");
}

// Hugging Face's row h*4 + part*2 + i is GGUF's row h*4 + 2i + part.
TEST(GgufWeightsTest, LlamaRowsOfQAndKAreAddressedInHuggingFaceOrder) {
  const Parsed parsed(TinyGguf("llama").Bytes());
  const auto tensors = ViewGgufTensors(*parsed.gguf, *ReadGgufConfig(*parsed.gguf));
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  const auto rows = [&](const std::string& name) {
    std::vector<float> first;
    const backend::WeightSource& source = tensors->at("model.layers.0.self_attn." + name + ".weight");
    for (int64_t r = 0; r < source.rows; ++r) {
      std::vector<float> row(source.cols);
      backend::cpu::DequantizeRow(source, r, row.data());
      first.push_back(row[0]);
    }
    return first;
  };
  EXPECT_THAT(rows("q_proj"), ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  EXPECT_THAT(rows("k_proj"), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(rows("v_proj"), ElementsAre(0, 1, 2, 3));
}

TEST(GgufWeightsTest, QwenRowsStayAsTheyAre) {
  const Parsed parsed(TinyGguf("qwen2").Bytes());
  const auto tensors = ViewGgufTensors(*parsed.gguf, *ReadGgufConfig(*parsed.gguf));
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->at("model.layers.0.self_attn.q_proj.weight").row_order, backend::RowOrder::kPlain);
  EXPECT_TRUE(tensors->contains("model.layers.0.self_attn.q_proj.bias"));
}

TEST(GgufWeightsTest, TensorsThatHaveNoPlaceAreRefused) {
  GgufBuilder builder = TinyGguf("llama");
  builder.AddF32("blk.0.attn_q.bias", {8}, std::vector<float>(8, 1));
  const Parsed parsed(builder.Bytes());
  ExpectError(ViewGgufTensors(*parsed.gguf, *ReadGgufConfig(*parsed.gguf)).status(), absl::StatusCode::kUnimplemented,
              "blk.0.attn_q.bias");
}

TEST(GgufWeightsTest, ABiasOfTheLogitsIsRefused) {
  GgufBuilder builder = TinyGguf("qwen2");
  builder.AddF32("output.bias", {6}, std::vector<float>(6, 1));
  const Parsed parsed(builder.Bytes());
  ExpectError(ViewGgufTensors(*parsed.gguf, *ReadGgufConfig(*parsed.gguf)).status(), absl::StatusCode::kUnimplemented,
              "output.bias");
}

TEST(GgufTokenizerTest, ByteLevelBpeIsNormalised) {
  const absl::StatusOr<TokenizerSpec> spec = ReadTokenizer(TinyGguf("llama"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->kind, TokenizerKind::kByteLevelBpe);
  EXPECT_THAT(spec->merges, ElementsAre(std::pair(1, 2), std::pair(4, 3)));
  ASSERT_EQ(spec->pre_tokenizer.size(), 1);
  EXPECT_THAT(spec->pre_tokenizer[0].regex, HasSubstr("'s|'t|'re"));
  EXPECT_EQ(spec->eos_id, 0);
  EXPECT_FALSE(spec->bos_id.has_value());
  ASSERT_EQ(spec->added_tokens.size(), 2);
  EXPECT_TRUE(spec->added_tokens[0].special);
  EXPECT_EQ(spec->added_tokens[1].id, 5);
  EXPECT_FALSE(spec->added_tokens[1].special);
}

TEST(GgufTokenizerTest, SmolLmSplitsDigitsFirst) {
  GgufBuilder builder = TinyGguf("llama");
  builder.Set("tokenizer.ggml.pre", "smollm");
  const absl::StatusOr<TokenizerSpec> spec = ReadTokenizer(builder);
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_EQ(spec->pre_tokenizer.size(), 2);
  EXPECT_EQ(spec->pre_tokenizer[0].kind, PreTokenizerStep::Kind::kIndividualDigits);
  EXPECT_EQ(spec->pre_tokenizer[1].kind, PreTokenizerStep::Kind::kSplitRegex);
}

TEST(GgufTokenizerTest, Llama3AddsBosAndIgnoresMerges) {
  GgufBuilder builder = TinyGguf("llama");
  builder.Set("tokenizer.ggml.pre", "llama-bpe");
  EXPECT_FALSE(ReadTokenizer(builder)->add_bos) << "there is no BOS";
  builder.Set("tokenizer.ggml.bos_token_id", uint32_t{1});
  EXPECT_TRUE(ReadTokenizer(builder)->add_bos);
  EXPECT_TRUE(ReadTokenizer(builder)->ignore_merges);
  builder.Set("tokenizer.ggml.add_bos_token", false);
  EXPECT_FALSE(ReadTokenizer(builder)->add_bos);
}

TEST(GgufTokenizerTest, Qwen2NormalisesToNfc) {
  GgufBuilder builder = TinyGguf("qwen2");
  builder.Set("tokenizer.ggml.pre", "qwen2");
  EXPECT_EQ(ReadTokenizer(builder)->normalizer, Normalizer::kNfc);
}

TEST(GgufTokenizerTest, UnknownPreTokeniserIsNamed) {
  GgufBuilder builder = TinyGguf("llama");
  builder.Set("tokenizer.ggml.pre", "sorcery");
  ExpectError(ReadTokenizer(builder).status(), absl::StatusCode::kUnimplemented, "\"sorcery\"");
}

TEST(GgufTokenizerTest, AddBosWithoutAnIdIsRefused) {
  GgufBuilder builder = TinyGguf("llama");
  builder.Set("tokenizer.ggml.add_bos_token", true);
  ExpectError(ReadTokenizer(builder).status(), absl::StatusCode::kInvalidArgument, "add_bos_token is true");
}

TEST(GgufTokenizerTest, NothingIsPaddedSoThatThePaddingMayBeNoToken) {
  constexpr uint32_t kNone = 4294967295;  // as llama2.c's converter writes it
  GgufBuilder builder = TinyGguf("llama");
  builder.Set("tokenizer.ggml.padding_token_id", kNone);
  EXPECT_TRUE(ReadTokenizer(builder).ok()) << ReadTokenizer(builder).status();
  for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"}) {
    GgufBuilder bad = TinyGguf("llama");
    bad.Set(key, kNone);
    ExpectError(ReadTokenizer(bad).status(), absl::StatusCode::kInvalidArgument, key);
  }
}

GgufBuilder SentencePieceGguf() {
  GgufBuilder builder = TinyGguf("llama");
  builder.Set("tokenizer.ggml.model", "llama");
  builder.SetStrings("tokenizer.ggml.tokens", {"<unk>", "<s>", "<0x41>", "\u2581", "a", "\u2581a"});
  builder.SetArray<int32_t>("tokenizer.ggml.token_type", 5, {2, 3, 6, 1, 1, 1});
  builder.SetArray<float>("tokenizer.ggml.scores", 6, {0, 0, 0, -1, -2, -3});
  builder.Set("tokenizer.ggml.bos_token_id", uint32_t{1});
  return builder;
}

TEST(GgufTokenizerTest, SentencePieceHasItsHabits) {
  const absl::StatusOr<TokenizerSpec> spec = ReadTokenizer(SentencePieceGguf());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->kind, TokenizerKind::kSentencePieceBpe);
  EXPECT_THAT(spec->scores, ElementsAre(0, 0, 0, -1, -2, -3));
  EXPECT_TRUE(spec->merges.empty());
  EXPECT_TRUE(spec->add_space_prefix && spec->escape_whitespaces && spec->byte_fallback && spec->add_bos);
  EXPECT_FALSE(spec->add_eos || spec->space_prefix_first_only || spec->remove_extra_whitespaces);
}

TEST(GgufTokenizerTest, SentencePieceDefectsAreNamed) {
  GgufBuilder byte = SentencePieceGguf();
  byte.SetArray<int32_t>("tokenizer.ggml.token_type", 5, {2, 3, 1, 1, 6, 1});
  ExpectError(ReadTokenizer(byte).status(), absl::StatusCode::kInvalidArgument, "want \"<0xNN>\"");
  GgufBuilder scores = SentencePieceGguf();
  scores.SetArray<float>("tokenizer.ggml.scores", 6, {0, 0, 0, -1, -2, NAN});
  ExpectError(ReadTokenizer(scores).status(), absl::StatusCode::kInvalidArgument, "element 5 is nan");
  scores.Drop("tokenizer.ggml.scores");
  ExpectError(ReadTokenizer(scores).status(), absl::StatusCode::kInvalidArgument, "tokenizer.ggml.scores is missing");
}

TEST(GgufTokenizerTest, OtherTokenizerModelsAreNamed) {
  GgufBuilder builder = TinyGguf("llama");
  builder.Set("tokenizer.ggml.model", "t5");
  ExpectError(ReadTokenizer(builder).status(), absl::StatusCode::kUnimplemented, "found \"t5\"");
}

TEST(GgufTokenizerTest, ChatTemplateMustBeUtf8) {
  GgufBuilder builder = TinyGguf("llama");
  builder.Set("tokenizer.chat_template", "{{ messages }}");
  EXPECT_EQ(*ReadGgufChatTemplate(Parsed(builder.Bytes()).gguf->metadata()), "{{ messages }}");
  builder.Set("tokenizer.chat_template", "\xC3(");
  ExpectError(ReadGgufChatTemplate(Parsed(builder.Bytes()).gguf->metadata()).status(),
              absl::StatusCode::kInvalidArgument, "tokenizer.chat_template is not UTF-8");
}

}  // namespace
}  // namespace swiftcache::engine::loader
