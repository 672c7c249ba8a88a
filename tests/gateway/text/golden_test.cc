// SPDX-License-Identifier: Apache-2.0
// Real tokenizers against what Hugging Face's tokenizers and llama.cpp make of the same text.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "engine/loader/checkpoint.h"
#include "engine/loader/gguf_file.h"
#include "engine/loader/gguf_tokenizer.h"
#include "engine/loader/mapped_file.h"
#include "gateway/text/detokenizer.h"
#include "gateway/text/tokenizer.h"
#include "tests/fakes/cached_file.h"
#include "tests/gateway/text/spec_from_loader.h"

namespace swiftcache::gateway::text {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

const std::string kData = std::string(SWIFTCACHE_SOURCE_DIR) + "/tests/data/";

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<json> ReadCases(const std::string& path) {
  std::vector<json> cases;
  std::istringstream lines(ReadText(path));
  for (std::string line; std::getline(lines, line);) cases.push_back(json::parse(line));
  return cases;
}

std::unique_ptr<Tokenizer> Create(const engine::loader::TokenizerSpec& spec) {
  auto tokenizer = Tokenizer::Create(SpecFromLoader(spec));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::unique_ptr<Tokenizer> OpenModel(const std::string& path) {
  const auto model = engine::loader::OpenCheckpoint(path);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? Create(model->card.tokenizer) : nullptr;
}

std::unique_ptr<Tokenizer> OpenVocabulary(const std::string& path) {
  const auto mapped = engine::loader::MappedFile::Open(path);
  EXPECT_TRUE(mapped.ok()) << mapped.status();
  if (!mapped.ok()) return nullptr;
  const auto gguf = engine::loader::GgufFile::Parse(mapped->bytes(), path);
  EXPECT_TRUE(gguf.ok()) << gguf.status();
  if (!gguf.ok()) return nullptr;
  const auto spec = engine::loader::ReadGgufTokenizer(gguf->metadata());
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? Create(*spec) : nullptr;
}

std::string Streamed(const Tokenizer& tokenizer, const Ids& ids) {
  Detokenizer out(tokenizer, {});
  std::string text;
  for (const int32_t id : ids) text += out.Push(id);
  return text + out.Flush();
}

void ExpectTokenizerCase(const Tokenizer& tokenizer, const json& row) {
  SCOPED_TRACE(row.dump().substr(0, 400));
  const EncodeOptions options = {.add_special = row["add_special"], .parse_special = row["parse_special"]};
  const Ids found = tokenizer.Encode(row["text"].get<std::string>(), options);
  const Ids wanted = row["ids"].get<Ids>();
  if (found != row.value("ids_llamacpp", wanted)) {
    EXPECT_EQ(found, wanted);
  }
  EXPECT_EQ(tokenizer.Decode(wanted, /*skip_special=*/false), row["decoded"].get<std::string>());
  EXPECT_EQ(Streamed(tokenizer, wanted), tokenizer.Decode(wanted, /*skip_special=*/true));
}

class TinyModel : public testing::TestWithParam<const char*> {};

TEST_P(TinyModel, TokenizesAsTransformers) {
  const std::string folder = kData + "tiny/" + GetParam();
  const auto tokenizer = OpenModel(folder);
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<json> cases = ReadCases(folder + "/tokenizer.jsonl");
  EXPECT_EQ(cases.size(), 73);
  for (const json& row : cases) ExpectTokenizerCase(*tokenizer, row);
}

INSTANTIATE_TEST_SUITE_P(All, TinyModel, testing::Values("tiny-llama-a", "tiny-llama-b", "tiny-qwen2", "tiny-qwen3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(TinyGguf, TokenizesAsTheSameModelInHuggingFacesForm) {
  const auto tokenizer = OpenModel(kData + "tiny-gguf/tiny-llama-a.q8_0.gguf");
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<json> cases = ReadCases(kData + "tiny/tiny-llama-a/tokenizer.jsonl");
  EXPECT_EQ(cases.size(), 73);
  for (const json& row : cases) ExpectTokenizerCase(*tokenizer, row);
}

class SmolLm2 : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = SmolLm2Path();
    if (!std::filesystem::exists(path)) {
      GTEST_SKIP() << "no model at " << path << "; deploy/fetch-model.sh fetches it, SWIFTCACHE_TEST_MODEL names it";
    }
    tokenizer_ = OpenModel(path);
    ASSERT_NE(tokenizer_, nullptr);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(SmolLm2, TokenizesAsItsGoldenCases) {
  const std::vector<json> cases = ReadCases(kData + "smollm2/tokenizer.jsonl");
  EXPECT_EQ(cases.size(), 248);
  for (const json& row : cases) ExpectTokenizerCase(*tokenizer_, row);
}

TEST_F(SmolLm2, DecodesCutCharactersAsItsGoldenCases) {
  const std::vector<json> cases = ReadCases(kData + "smollm2/decode.jsonl");
  EXPECT_EQ(cases.size(), 59);
  for (const json& row : cases) {
    SCOPED_TRACE(row.dump().substr(0, 400));
    const Ids ids = row["ids"].get<Ids>();
    std::string bytes;
    for (const int32_t id : ids) bytes += tokenizer_->TokenBytes(id);
    EXPECT_EQ(absl::BytesToHexString(bytes), row["bytes_hex"].get<std::string>());
    EXPECT_EQ(tokenizer_->Decode(ids, /*skip_special=*/false), row["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer_->Decode(ids, /*skip_special=*/true), row["decoded_skip_special"].get<std::string>());
    EXPECT_EQ(Streamed(*tokenizer_, ids), row["decoded_skip_special"].get<std::string>());
  }
}

/// The texts of an .inp file; its .out file has a line of ids for each.
std::vector<std::string> SplitTexts(const std::string& text) {
  constexpr std::string_view kSeparator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> texts;
  size_t begin = 0;
  for (size_t end; (end = text.find(kSeparator, begin)) != std::string::npos; begin = end + kSeparator.size()) {
    texts.push_back(text.substr(begin, end - begin));
  }
  texts.push_back(text.substr(begin));
  return texts;
}

class RealVocabulary : public testing::TestWithParam<const char*> {};

TEST_P(RealVocabulary, TokenizesAsLlamaCpp) {
  const std::string path = CachedFile("SWIFTCACHE_TEST_VOCABS", "test-vocabs") + "/ggml-vocab-" + GetParam() + ".gguf";
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << "no vocabulary at " << path << "; tests/fetch-vocabs.sh fetches it";
  }
  const auto tokenizer = OpenVocabulary(path);
  ASSERT_NE(tokenizer, nullptr);
  std::istringstream outputs(ReadText(path + ".out"));
  int compared = 0;
  for (const std::string& text : SplitTexts(ReadText(path + ".inp"))) {
    std::string line;
    std::getline(outputs, line);
    std::istringstream numbers(line);
    const Ids wanted{std::istream_iterator<int32_t>(numbers), {}};
    EXPECT_EQ(tokenizer->Encode(text, {.add_special = false}), wanted) << "text: " << text;
    EXPECT_EQ(Streamed(*tokenizer, wanted), tokenizer->Decode(wanted, /*skip_special=*/true));
    ++compared;
  }
  EXPECT_EQ(compared, 47);
}

INSTANTIATE_TEST_SUITE_P(All, RealVocabulary,
                         testing::Values("gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "starcoder", "refact",
                                         "command-r"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace swiftcache::gateway::text
