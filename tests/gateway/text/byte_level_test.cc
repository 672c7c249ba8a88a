// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE (GPT-2, SmolLM2, Llama 3, Qwen).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/gateway/text/specs.h"

namespace swiftcache::gateway::text {
namespace {

using ::testing::ElementsAre;

const std::vector<std::string> kMerges = {"h e",    "l l",     "he ll", "Ġ w", "o r",  "hell o", "Ġw or",
                                          "Ġwor l", "Ġworl d", "Ã ©",   "c a", "ca f", "a a",    "aa aa"};

TEST(ByteLevelBpe, MergesByRankWithinPieces) {
  TokenizerSpec spec = ByteLevelSpec(kMerges);
  spec.pre_tokenizer = {Regex(kGpt2Regex)};
  const auto tokenizer = Build(std::move(spec));
  EXPECT_THAT(Pieces(*tokenizer, "hello world"), ElementsAre("hello", "Ġworld"));
  EXPECT_THAT(Pieces(*tokenizer, "hell"), ElementsAre("hell"));
  EXPECT_THAT(Pieces(*tokenizer, "caf\u00e9!"), ElementsAre("caf", "Ã©", "!"));
  EXPECT_THAT(Pieces(*tokenizer, "aaaaaaa"), ElementsAre("aaaa", "aa", "a"));
  EXPECT_THAT(Pieces(*tokenizer, ""), ElementsAre());
}

TEST(ByteLevelBpe, DoesNotMergeAcrossPieces) {
  TokenizerSpec spec = ByteLevelSpec({"a 1", "1 1"});
  spec.pre_tokenizer = {{PreTokenizerStep::Kind::kIndividualDigits, ""}};
  EXPECT_THAT(Pieces(*Build(std::move(spec)), "a11"), ElementsAre("a", "1", "1"));
}

// "abc" is a token, but its merges never give it: "bc" goes first.
TEST(ByteLevelBpe, TakesAWholePieceThatMergesDoNotGiveOnlyWithIgnoreMerges) {
  TokenizerSpec spec = ByteLevelSpec({"b c", "a b"});
  AddToken(&spec, "abc", TokenType::kNormal);
  EXPECT_THAT(Pieces(*Build(spec), "abc"), ElementsAre("a", "bc"));
  spec.ignore_merges = true;
  EXPECT_THAT(Pieces(*Build(spec), "abc"), ElementsAre("abc"));
}

TEST(ByteLevelBpe, LetsBytesWithoutATokenVanish) {
  TokenizerSpec spec = ByteLevelSpec({"! !"});
  spec.tokens[4] = "gone";
  const auto tokenizer = Build(std::move(spec));
  EXPECT_THAT(Pieces(*tokenizer, "a\x04z"), ElementsAre("a", "z"));
  EXPECT_THAT(Pieces(*tokenizer, "\x04"), ElementsAre());
}

TEST(ByteLevelBpe, NormalisesWhereTheSpecSaysSo) {
  TokenizerSpec spec = ByteLevelSpec({"Ã ©"});
  EXPECT_THAT(Pieces(*Build(spec), "e\u0301"), ElementsAre("e", "Ì", "ģ"));
  spec.normalizer = Normalizer::kNfc;
  EXPECT_THAT(Pieces(*Build(spec), "e\u0301"), ElementsAre("Ã©"));
}

TEST(ByteLevelBpe, PutsBosAndEosOnlyWhereAskedFor) {
  TokenizerSpec spec = ByteLevelSpec({});
  spec.bos_id = AddToken(&spec, "<s>", TokenType::kControl);
  spec.eos_id = AddToken(&spec, "</s>", TokenType::kControl);
  EXPECT_THAT(Pieces(*Build(spec), "a", {.add_special = true}), ElementsAre("a"));
  spec.add_bos = spec.add_eos = true;
  const auto tokenizer = Build(spec);
  EXPECT_THAT(Pieces(*tokenizer, "a", {.add_special = true}), ElementsAre("<s>", "a", "</s>"));
  EXPECT_THAT(Pieces(*tokenizer, "", {.add_special = true}), ElementsAre("<s>", "</s>"));
  EXPECT_THAT(Pieces(*tokenizer, "a", {.add_special = false}), ElementsAre("a"));
  EXPECT_EQ(tokenizer->bos_id(), 256);
  EXPECT_EQ(tokenizer->eos_id(), 257);
  EXPECT_EQ(tokenizer->vocab_size(), 258);
}

TEST(ByteLevelBpe, RepairsTextThatIsNotUtf8) {
  const auto tokenizer = Build(ByteLevelSpec({}));
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("a\xff\xe4\xbd", {}), false), "a\ufffd\ufffd");
}

TEST(ByteLevelBpe, DecodesCutCharactersAsOneMarkEach) {
  const auto tokenizer = Build(ByteLevelSpec({}));
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{0xf0, 0x9f, 0x98, 'a', 0x80}, false), "\ufffda\ufffd");
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{0xf0, 0x9f, 0x98, 0x80}, false), "\U0001f600");
  EXPECT_EQ(tokenizer->Decode({}, false), "");
}

TEST(ByteLevelBpe, SkipsIdsOutsideTheVocabulary) {
  const auto tokenizer = Build(ByteLevelSpec({}));
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{-1, 'a', 256, 1 << 30, 'b'}, false), "ab");
  for (const int32_t id : {-1, 256, 1 << 30}) {
    EXPECT_EQ(tokenizer->TokenBytes(id), "");
    EXPECT_FALSE(tokenizer->IsSpecial(id));
  }
  EXPECT_EQ(tokenizer->TokenBytes(' '), " ");
}

TEST(ByteLevelBpe, GivesRandomTextBack) {
  TokenizerSpec spec = ByteLevelSpec(kMerges);
  spec.pre_tokenizer = {Regex(kLlama3Regex)};
  const auto tokenizer = Build(std::move(spec));
  const uint32_t seed = 99;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (uint32_t n = random() % 30; n > 0; --n) {
      char32_t c = random() % 3 == 0 ? random() % 0x11000 : " ahelowrd'\n1\u00e9"[random() % 12] & 0x7f;
      if (c >= 0xd800 && c <= 0xdfff) c = 'x';
      AppendUtf8(c, &text);
    }
    ASSERT_EQ(tokenizer->Decode(tokenizer->Encode(text, {}), false), text);
  }
}

TEST(ByteLevelBpe, EncodesOnManyThreadsAtOnce) {
  TokenizerSpec spec = ByteLevelSpec(kMerges);
  spec.pre_tokenizer = {Regex(kGpt2Regex)};
  AddToken(&spec, "<|im_start|>", TokenType::kControl);
  const auto tokenizer = Build(std::move(spec));
  const std::string text = "<|im_start|>hello world caf\u00e9 aaaa  hellohello\n";
  const std::vector<int32_t> expected = tokenizer->Encode(text, {.parse_special = true});
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) wrong[t] += tokenizer->Encode(text, {.parse_special = true}) != expected;
      for (int i = 0; i < 300; ++i) wrong[t] += tokenizer->Decode(expected, false) != text;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

}  // namespace
}  // namespace swiftcache::gateway::text
