// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/hf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/loader/hf_model_card.h"

namespace swiftcache::engine::loader {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json Added(int id, const std::string& content, bool special) {
  return {{"id", id}, {"content", content}, {"special", special}, {"lstrip", !special}, {"normalized", false}};
}

json ByteLevel() {
  return json::parse(R"({
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "post_processor": null,
    "model": {"type": "BPE", "vocab": {"<s>": 0, "a": 1, "b": 2, "ab": 3}, "merges": [["a", "b"]]}})");
}

// As transformers writes Llama 2's.
json SentencePiece() {
  return json::parse(R"({
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                   {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "pre_tokenizer": null,
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
              "vocab": {"<unk>": 0, "<0x41>": 1, "▁": 2, "a": 3, "▁a": 4}, "merges": ["▁ a"]}})");
}

TokenizerSpec Parse(const json& tokenizer) {
  absl::StatusOr<TokenizerSpec> spec = ParseHfTokenizer(tokenizer.dump(), "tokenizer.json", 100);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.value_or(TokenizerSpec());
}

void ExpectError(const json& tokenizer, absl::StatusCode code, const std::string& words) {
  const absl::Status status = ParseHfTokenizer(tokenizer.dump(), "tokenizer.json", 100).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), testing::AllOf(HasSubstr("tokenizer.json"), HasSubstr(words)));
}

TEST(HfTokenizerTest, ByteLevelWithItsRegexIsGpt2s) {
  const TokenizerSpec spec = Parse(ByteLevel());
  EXPECT_EQ(spec.kind, TokenizerKind::kByteLevelBpe);
  EXPECT_THAT(spec.tokens, ElementsAre("<s>", "a", "b", "ab"));
  EXPECT_THAT(spec.merges, ElementsAre(std::pair(1, 2)));
  ASSERT_EQ(spec.pre_tokenizer.size(), 1);
  EXPECT_THAT(spec.pre_tokenizer[0].regex, HasSubstr("'s|'t|'re"));
}

TEST(HfTokenizerTest, StepsKeepTheirOrder) {
  json tokenizer = ByteLevel();
  tokenizer["normalizer"] = {{"type", "NFC"}};
  tokenizer["pre_tokenizer"] = json::parse(R"({"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\p{L}+"}, "behavior": "Isolated", "invert": false},
      {"type": "Split", "pattern": {"String": "a.b"}, "behavior": "Isolated", "invert": false},
      {"type": "Digits", "individual_digits": true},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})");
  const TokenizerSpec spec = Parse(tokenizer);
  ASSERT_EQ(spec.pre_tokenizer.size(), 3);
  EXPECT_EQ(spec.pre_tokenizer[0].regex, "\\p{L}+");
  EXPECT_EQ(spec.pre_tokenizer[1].regex, "a\\.b");
  EXPECT_EQ(spec.pre_tokenizer[2].kind, PreTokenizerStep::Kind::kIndividualDigits);
  EXPECT_EQ(spec.normalizer, Normalizer::kNfc);
}

TEST(HfTokenizerTest, AddedTokensJoinTheVocabularyAndHolesAreUnused) {
  json tokenizer = ByteLevel();
  tokenizer["added_tokens"] = {Added(0, "<s>", true), Added(5, "<pad>", false)};
  const TokenizerSpec spec = Parse(tokenizer);
  ASSERT_EQ(spec.tokens.size(), 6);
  EXPECT_EQ(spec.tokens[5], "<pad>");
  EXPECT_EQ(spec.token_types[0], TokenType::kControl);
  EXPECT_EQ(spec.token_types[4], TokenType::kUnused);
  EXPECT_EQ(spec.token_types[5], TokenType::kUserDefined);
  EXPECT_TRUE(spec.added_tokens[1].lstrip);
}

TEST(HfTokenizerTest, AddedTokensOutsideTheModelAreRefused) {
  json tokenizer = ByteLevel();
  tokenizer["added_tokens"] = json::array({Added(100, "<far>", true)});
  ExpectError(tokenizer, absl::StatusCode::kInvalidArgument,
              "added_tokens[0].id: found 100, want a whole number from 0 to 99");
  tokenizer["added_tokens"] = json::array({Added(1, "<other>", true)});
  ExpectError(tokenizer, absl::StatusCode::kInvalidArgument, "id 1 belongs to");
}

TEST(HfTokenizerTest, SentencePieceFromNormalizers) {
  const TokenizerSpec spec = Parse(SentencePiece());
  EXPECT_EQ(spec.kind, TokenizerKind::kSentencePieceBpe);
  EXPECT_TRUE(spec.add_space_prefix && spec.escape_whitespaces && spec.byte_fallback && spec.fuse_unk);
  EXPECT_FALSE(spec.space_prefix_first_only);
  EXPECT_EQ(spec.unk_id, 0);
  EXPECT_EQ(spec.token_types[0], TokenType::kUnknown);
  EXPECT_EQ(spec.token_types[1], TokenType::kByte);
  EXPECT_THAT(spec.merges, ElementsAre(std::pair(2, 3)));
  EXPECT_TRUE(spec.scores.empty());
}

TEST(HfTokenizerTest, SentencePieceFromMetaspace) {
  json tokenizer = SentencePiece();
  tokenizer["normalizer"] = nullptr;
  json& metaspace = tokenizer["pre_tokenizer"];
  metaspace = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}, {"split", false}};
  TokenizerSpec spec = Parse(tokenizer);
  EXPECT_TRUE(spec.add_space_prefix && spec.space_prefix_first_only && spec.escape_whitespaces);
  EXPECT_TRUE(spec.pre_tokenizer.empty());
  metaspace["prepend_scheme"] = "never";
  metaspace["split"] = true;
  spec = Parse(tokenizer);
  EXPECT_FALSE(spec.add_space_prefix || spec.space_prefix_first_only);
  EXPECT_EQ(spec.pre_tokenizer.size(), 1);
  metaspace["prepend_scheme"] = "always";
  ExpectError(tokenizer, absl::StatusCode::kUnimplemented, "found \"always\"");
}

TEST(HfTokenizerTest, PartsThatAreNotSupportedAreNamed) {
  const auto with = [](const char* key, const char* part) {
    json tokenizer = ByteLevel();
    tokenizer[key] = json::parse(part);
    return tokenizer;
  };
  ExpectError(with("normalizer", R"({"type": "Lowercase"})"), absl::StatusCode::kUnimplemented, "found \"Lowercase\"");
  ExpectError(with("pre_tokenizer", R"({"type": "Whitespace"})"), absl::StatusCode::kUnimplemented,
              "found \"Whitespace\"");
  ExpectError(with("pre_tokenizer", "null"), absl::StatusCode::kUnimplemented, "neither byte-level");
  ExpectError(with("post_processor", R"({"type": "BertProcessing"})"), absl::StatusCode::kUnimplemented,
              "BertProcessing");
  ExpectError(with("pre_tokenizer", R"({"type": "ByteLevel", "add_prefix_space": true})"),
              absl::StatusCode::kUnimplemented, "add_prefix_space");
  ExpectError(with("pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Removed"})"),
              absl::StatusCode::kUnimplemented, "found \"Removed\"");
}

json Template(const char* single) {
  json tokenizer = ByteLevel();
  tokenizer["post_processor"] = {{"type", "Sequence"},
                                 {"processors",
                                  {{{"type", "ByteLevel"}},
                                   {{"type", "TemplateProcessing"},
                                    {"single", json::parse(single)},
                                    {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {0}}}}}}}}}};
  return tokenizer;
}

TEST(HfTokenizerTest, TemplateProcessingAddsBosAndEos) {
  const TokenizerSpec bos = Parse(Template(R"([{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}])"));
  EXPECT_TRUE(bos.add_bos);
  EXPECT_FALSE(bos.add_eos);
  EXPECT_EQ(bos.bos_id, 0);
  const TokenizerSpec eos = Parse(Template(R"([{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<s>"}}])"));
  EXPECT_FALSE(eos.add_bos);
  EXPECT_TRUE(eos.add_eos);
  EXPECT_EQ(eos.eos_id, 0);
}

TEST(HfTokenizerTest, TemplatesOfAnotherShapeAreRefused) {
  ExpectError(Template(R"([{"SpecialToken": {"id": "<s>"}}])"), absl::StatusCode::kInvalidArgument, "one Sequence");
  ExpectError(Template(R"([{"SpecialToken": {"id": "<s>"}}, {"SpecialToken": {"id": "<s>"}}, {"Sequence": {}}])"),
              absl::StatusCode::kUnimplemented, "more than one token on a side");
  ExpectError(Template(R"([{"SpecialToken": {"id": "<t>"}}, {"Sequence": {}}])"), absl::StatusCode::kInvalidArgument,
              "special_tokens.<t> is missing");
}

ModelCard Card() {
  ModelCard card;
  card.tokenizer = Parse(ByteLevel());
  return card;
}

TEST(TokenizerConfigTest, SpecialTokensAreTextOrObjects) {
  ModelCard card = Card();
  ASSERT_TRUE(
      AddTokenizerConfig(R"({"bos_token": {"content": "<s>"}, "eos_token": "a", "unk_token": null})", "t.json", card)
          .ok());
  EXPECT_EQ(card.tokenizer.bos_id, 0);
  EXPECT_EQ(card.tokenizer.eos_id, 1);
  EXPECT_FALSE(card.tokenizer.unk_id.has_value());
  const absl::Status unknown = AddTokenizerConfig(R"({"eos_token": "zz"})", "t.json", card);
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("t.json: key eos_token: found \"zz\""));
}

TEST(TokenizerConfigTest, NothingIsPaddedSoThatThePaddingMayBeNoToken) {
  ModelCard card = Card();
  EXPECT_EQ(AddTokenizerConfig(R"({"pad_token": "<pad>"})", "t.json", card), absl::OkStatus());
}

TEST(TokenizerConfigTest, OnlyLlamaTokenizersHeedAddBosToken) {
  ModelCard card = Card();
  ASSERT_TRUE(AddTokenizerConfig(R"({"tokenizer_class": "Qwen2Tokenizer", "bos_token": "<s>", "add_bos_token": true})",
                                 "t.json", card)
                  .ok());
  EXPECT_FALSE(card.tokenizer.add_bos);
  ASSERT_TRUE(
      AddTokenizerConfig(R"({"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": true})", "t.json", card).ok());
  EXPECT_TRUE(card.tokenizer.add_bos);
}

TEST(TokenizerConfigTest, TheDefaultOfNamedTemplatesCounts) {
  ModelCard card = Card();
  const char* list = R"({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]})";
  ASSERT_TRUE(AddTokenizerConfig(list, "t.json", card).ok());
  EXPECT_EQ(card.chat_template, "d");
  ASSERT_TRUE(AddTokenizerConfig(R"({"chat_template": "one"})", "t.json", card).ok());
  EXPECT_EQ(card.chat_template, "one");
  EXPECT_EQ(AddTokenizerConfig(R"({"chat_template": 5})", "t.json", card).code(), absl::StatusCode::kInvalidArgument);
}

TEST(TokenizerConfigTest, ABosThatContradictsTheTemplateIsRefused) {
  ModelCard card;
  card.tokenizer = Parse(Template(R"([{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}])"));
  EXPECT_EQ(AddTokenizerConfig(R"({"bos_token": "a"})", "t.json", card).code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace swiftcache::engine::loader
