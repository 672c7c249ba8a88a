// SPDX-License-Identifier: Apache-2.0
// Whole models: the tiny golden ones, and folders put together by hand.
#include "engine/loader/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/dequantize.h"
#include "tests/engine/loader/gguf_builder.h"
#include "tests/engine/loader/test_files.h"
#include "tests/fakes/temp_folder.h"

namespace swiftcache::engine::loader {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Checkpoint Open(const std::string& path) {
  absl::StatusOr<Checkpoint> model = OpenCheckpoint(path);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : Checkpoint();
}

void ExpectError(const std::string& path, absl::StatusCode code, const std::string& words) {
  const absl::Status status = OpenCheckpoint(path).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
}

TEST(CheckpointTest, TinyModelsHaveTheirConfigurations) {
  const Checkpoint llama = Open(DataPath("tiny/tiny-llama-b"));
  EXPECT_EQ(llama.config.rope_scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(llama.config.rope_scaling.original_max_position, 64);
  EXPECT_EQ(llama.config.vocab_size, 601);
  EXPECT_TRUE(llama.card.tokenizer.add_bos && llama.card.tokenizer.ignore_merges);
  EXPECT_EQ(llama.card.tokenizer.bos_id, 0);
  const Checkpoint qwen2 = Open(DataPath("tiny/tiny-qwen2"));
  EXPECT_TRUE(qwen2.config.qkv_bias);
  EXPECT_EQ(qwen2.config.head_dim, 16);
  EXPECT_EQ(qwen2.card.tokenizer.normalizer, Normalizer::kNfc);
  const Checkpoint qwen3 = Open(DataPath("tiny/tiny-qwen3"));
  EXPECT_TRUE(qwen3.config.qk_norm && qwen3.config.tied_embeddings);
  EXPECT_EQ(qwen3.config.head_dim, 32);
  EXPECT_EQ(qwen3.card.tokenizer.tokens.size(), 693);
  EXPECT_EQ(qwen3.card.vocab_size, 704);
  EXPECT_EQ(qwen3.weights->Find("lm_head.weight").status().code(), absl::StatusCode::kNotFound);
}

// bf16 values up to 2^-14 are exact in f16; smaller ones lose bits.
TEST(CheckpointTest, GgufAndFolderOfOneModelHoldTheSameRowsInTheSameOrder) {
  const Checkpoint folder = Open(DataPath("tiny/tiny-llama-a")),
                   gguf = Open(DataPath("tiny-gguf/tiny-llama-a.f16.gguf"));
  ASSERT_EQ(folder.weights->tensors().size(), 39);
  for (const auto& [name, want] : folder.weights->tensors()) {
    const absl::StatusOr<const backend::WeightSource*> got = gguf.weights->Find(name);
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_EQ((*got)->rows, want.rows) << name;
    std::vector<float> a(want.cols), b(want.cols);
    for (int64_t r = 0; r < want.rows; ++r) {
      backend::cpu::DequantizeRow(want, r, a.data());
      backend::cpu::DequantizeRow(**got, r, b.data());
      for (int64_t c = 0; c < want.cols; ++c) ASSERT_NEAR(a[c], b[c], 4e-8) << name << " row " << r;
    }
  }
}

TEST(CheckpointTest, GgufAndFolderOfOneModelHaveTheSameTokenizer) {
  const Checkpoint folder = Open(DataPath("tiny/tiny-llama-a")),
                   gguf = Open(DataPath("tiny-gguf/tiny-llama-a.q4_1.gguf"));
  const TokenizerSpec &a = folder.card.tokenizer, &b = gguf.card.tokenizer;
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.merges, b.merges);
  EXPECT_EQ(a.pre_tokenizer.size(), b.pre_tokenizer.size());
  EXPECT_EQ(a.pre_tokenizer.front().regex, b.pre_tokenizer.front().regex);
  EXPECT_EQ(a.eos_id, b.eos_id);
  EXPECT_EQ(a.added_tokens.size(), b.added_tokens.size());
  ASSERT_LE(a.tokens.size(), b.tokens.size());
  for (size_t i = 0; i < a.tokens.size(); ++i) EXPECT_EQ(a.tokens[i], b.tokens[i]);
  EXPECT_EQ(folder.card.chat_template, gguf.card.chat_template);
  EXPECT_EQ(folder.config.rms_eps, 1e-5);
}

TEST(CheckpointTest, AFolderWithoutSafetensorsIsToldWhatToDo) {
  const TempFolder folder;
  folder.CopyFrom(DataPath("tiny/tiny-llama-a"));
  std::filesystem::remove(folder.path() + "/model.safetensors");
  ExpectError(folder.path(), absl::StatusCode::kNotFound, "convert its weights to safetensors, or take a GGUF file");
}

TEST(CheckpointTest, OfAFileThatThisUserMayNotReadTheUserIsNamed) {
  const TempFolder folder;
  const std::string file = folder.Write("model.gguf", "GGUF");
  namespace fs = std::filesystem;
  fs::permissions(folder.path(), fs::perms::owner_all | fs::perms::group_exec | fs::perms::others_exec);
  fs::permissions(file, fs::perms::none);
  const bool root = geteuid() == 0;
  ASSERT_EQ(root ? seteuid(65534) : 0, 0);
  ExpectError(file, absl::StatusCode::kPermissionDenied,
              absl::StrCat("user ", geteuid(), " may not read it: let that"));
  ASSERT_EQ(root ? seteuid(0) : 0, 0);
}

TEST(CheckpointTest, TwoEndOfSequenceIdsAreKept) {
  EXPECT_THAT(Open(DataPath("ok/hf-config-new")).config.eos_ids, ElementsAre(2, 0));
}

// Of six tokens; the fifth joins the second and the third.
GgufBuilder GgufOfTokens(const std::vector<std::string>& tokens, const std::vector<int32_t>& types) {
  GgufBuilder builder = TinyGguf("llama");
  builder.SetStrings("tokenizer.ggml.tokens", tokens);
  builder.SetArray<int32_t>("tokenizer.ggml.token_type", 5, types);
  builder.SetStrings("tokenizer.ggml.merges", {"a b"});
  return builder;
}

// Older conversions: the end of a sequence is typed normal (1), that of a turn user-defined (4).
TEST(CheckpointTest, TokensThatEndAnAnswerAreControlTokensWhateverTheFileSays) {
  GgufBuilder builder = GgufOfTokens({"</s>", "a", "b", "<|eot|>", "ab", "<|x|>"}, {1, 1, 1, 4, 1, 4});
  builder.Set("tokenizer.ggml.eot_token_id", uint32_t{3});
  const TempFolder folder;
  const TokenizerSpec spec = Open(folder.Write("old.gguf", builder.Bytes())).card.tokenizer;
  EXPECT_THAT(spec.token_types, ElementsAre(TokenType::kControl, TokenType::kNormal, TokenType::kNormal,
                                            TokenType::kControl, TokenType::kNormal, TokenType::kUserDefined));
  ASSERT_EQ(spec.added_tokens.size(), 3);
  for (const AddedToken& token : spec.added_tokens) EXPECT_EQ(token.special, token.id != 5) << token.id;
}

// What is typed normal is text, however it is spelled.
TEST(CheckpointTest, EndsOfTurnsAndWhatStandsBetweenFilesEndAnAnswerToo) {
  for (const char* end : {"<|end|>", "<end_of_turn>", "<EOT>", "_<EOT>", "[EOT]", "</s>", "<eos>",
                          "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|fim_pad|>", "<fim_pad>", "<|fim_repo|>",
                          "<|repo_name|>", "<reponame>", "<|file_sep|>"}) {
    for (const auto& [type, ends] : {std::pair(3, true), std::pair(4, true), std::pair(1, false)}) {
      const GgufBuilder builder =
          GgufOfTokens({"<|im_end|>", "a", "b", "<|im_start|>", "ab", end}, {3, 1, 1, 3, 1, type});
      const TempFolder folder;
      EXPECT_EQ(Open(folder.Write("ends.gguf", builder.Bytes())).config.eos_ids,
                ends ? std::vector<int32_t>({0, 5}) : std::vector<int32_t>({0}))
          << end << " of type " << type;
    }
  }
}

// As in Qwen's files, whose ids name the end of a turn alone, though generation_config.json has both.
TEST(CheckpointTest, ControlTokensOfKnownSpellingsEndAnAnswerToo) {
  const GgufBuilder builder =
      GgufOfTokens({"<|im_end|>", "a", "b", "<|endoftext|>", "ab", "<|eom_id|>"}, {3, 1, 1, 3, 1, 1});
  const TempFolder folder;
  EXPECT_THAT(Open(folder.Write("qwen.gguf", builder.Bytes())).config.eos_ids, ElementsAre(0, 3));
}

TEST(CheckpointTest, UserDefinedTokensOfKnownSpellingsEndAnAnswerToo) {
  const GgufBuilder builder = GgufOfTokens({"</s>", "a", "b", "<|im_end|>", "ab", "<|im_start|>"}, {3, 1, 1, 4, 1, 4});
  const TempFolder folder;
  const Checkpoint model = Open(folder.Write("chatml.gguf", builder.Bytes()));
  EXPECT_THAT(model.config.eos_ids, ElementsAre(0, 3));
  ASSERT_EQ(model.card.tokenizer.added_tokens.size(), 3u);
  for (const AddedToken& token : model.card.tokenizer.added_tokens) EXPECT_EQ(token.special, token.id != 5) << token.id;
}

TEST(CheckpointTest, ALetterThatEndsAnAnswerStaysALetter) {
  GgufBuilder builder = GgufOfTokens({"<s>", "a", "b", "c", "ab", "abc"}, {3, 1, 1, 1, 1, 1});
  builder.Set("tokenizer.ggml.eos_token_id", uint32_t{2});
  const TempFolder folder;
  const Checkpoint model = Open(folder.Write("letter.gguf", builder.Bytes()));
  EXPECT_THAT(model.config.eos_ids, ElementsAre(2));
  EXPECT_EQ(model.card.tokenizer.token_types[2], TokenType::kNormal);
}

TEST(CheckpointTest, AnAddedTokenThatEndsAnAnswerIsSpecial) {
  const TempFolder folder;
  folder.CopyFrom(DataPath("ok/hf-base"));
  nlohmann::json tokenizer = nlohmann::json::parse(ReadFile(folder.path() + "/tokenizer.json"));
  for (nlohmann::json& token : tokenizer["added_tokens"]) token["special"] = false;
  folder.Write("tokenizer.json", tokenizer.dump());
  const Checkpoint model = Open(folder.path());
  ASSERT_THAT(model.config.eos_ids, ElementsAre(2));
  EXPECT_EQ(model.card.tokenizer.token_types[2], TokenType::kControl);
  for (const AddedToken& token : model.card.tokenizer.added_tokens) EXPECT_EQ(token.special, token.id == 2);
}

TEST(CheckpointTest, ChatTemplateFileBesideCountsMore) {
  const TempFolder folder;
  folder.CopyFrom(DataPath("ok/hf-base"));
  folder.Write("chat_template.jinja", "{{ 'file' }}");
  EXPECT_EQ(Open(folder.path()).card.chat_template, "{{ 'file' }}");
  folder.Write("chat_template.jinja", "\xff");
  ExpectError(folder.path(), absl::StatusCode::kInvalidArgument, "chat_template.jinja: not UTF-8");
}

// As of a chat model whose configuration is still that of its base.
TEST(CheckpointTest, TheTokenizersEndOfSequenceEndsAnAnswerToo) {
  const TempFolder folder;
  folder.CopyFrom(DataPath("ok/hf-base"));
  nlohmann::json config = nlohmann::json::parse(ReadFile(folder.path() + "/config.json"));
  config["eos_token_id"] = 0;
  folder.Write("config.json", config.dump());
  std::filesystem::remove(folder.path() + "/generation_config.json");
  const Checkpoint model = Open(folder.path());
  EXPECT_EQ(model.card.tokenizer.eos_id, 2);
  EXPECT_THAT(model.config.eos_ids, ElementsAre(0, 2));
}

TEST(CheckpointTest, TokenizerConfigMayBeMissing) {
  const TempFolder folder;
  folder.CopyFrom(DataPath("ok/hf-base"));
  std::filesystem::remove(folder.path() + "/tokenizer_config.json");
  const Checkpoint model = Open(folder.path());
  EXPECT_EQ(model.card.chat_template, "");
  EXPECT_EQ(model.card.tokenizer.eos_id, 2) << "config.json's";
}

// As in Hugging Face's cache, where files are links into another folder.
TEST(CheckpointTest, LinkedFilesAreFollowed) {
  const TempFolder store, folder;
  store.CopyFrom(DataPath("ok/hf-sharded"));
  for (const auto& entry : std::filesystem::directory_iterator(store.path())) {
    std::filesystem::create_symlink(entry.path(), std::filesystem::path(folder.path()) / entry.path().filename());
  }
  EXPECT_EQ(Open(folder.path()).config.hidden_size, 8);
}

TEST(CheckpointTest, ShardsMustKeepTheIndexsPromise) {
  const TempFolder folder;
  folder.CopyFrom(DataPath("ok/hf-sharded"));
  const std::string index = folder.path() + "/model.safetensors.index.json";
  nlohmann::json json = nlohmann::json::parse(ReadFile(index));
  json["weight_map"]["model.norm.weight"] = "model-00001-of-00002.safetensors";
  folder.Write("model.safetensors.index.json", json.dump());
  ExpectError(folder.path(), absl::StatusCode::kInvalidArgument,
              "tensor \"model.norm.weight\" is missing, the index says");
}

TEST(CheckpointTest, WeightsWithoutAPlaceAreRefused) {
  const TempFolder folder;
  folder.CopyFrom(DataPath("tiny/tiny-qwen2"));
  nlohmann::json config = nlohmann::json::parse(ReadFile(folder.path() + "/config.json"));
  config["architectures"] = {"LlamaForCausalLM"};
  folder.Write("config.json", config.dump());
  ExpectError(folder.path(), absl::StatusCode::kUnimplemented, "k_proj.bias\" has no place");
}

TEST(CheckpointTest, PathsThatAreNoModelsAreExplained) {
  const TempFolder folder;
  ExpectError(folder.path() + "/none", absl::StatusCode::kNotFound, "no such file or folder");
  ExpectError(folder.path(), absl::StatusCode::kNotFound, "config.json");
  ExpectError(folder.Write("model.bin", "PK\x03\x04 something"), absl::StatusCode::kInvalidArgument, "want \"GGUF\"");
  ExpectError("/dev/null", absl::StatusCode::kInvalidArgument, "not a regular file");
}

}  // namespace
}  // namespace swiftcache::engine::loader
