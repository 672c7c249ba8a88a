// SPDX-License-Identifier: Apache-2.0
// Added tokens: cut out of the text before anything else happens to it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gateway/text/specs.h"

namespace swiftcache::gateway::text {
namespace {

using ::testing::ElementsAre;

/// A byte-level tokenizer with one added token of these flags.
std::unique_ptr<Tokenizer> With(const std::string& content, AddedToken token) {
  TokenizerSpec spec = ByteLevelSpec({});
  token.id = AddToken(&spec, content, token.special ? TokenType::kControl : TokenType::kUserDefined);
  spec.added_tokens = {token};
  return Build(std::move(spec));
}

constexpr EncodeOptions kParse = {.parse_special = true};

TEST(AddedTokens, SpecialOnesAreTextUnlessAskedFor) {
  const auto tokenizer = With("<s>", {.special = true});
  EXPECT_THAT(Pieces(*tokenizer, "a<s>b"), ElementsAre("a", "<", "s", ">", "b"));
  EXPECT_THAT(Pieces(*tokenizer, "a<s>b", kParse), ElementsAre("a", "<s>", "b"));
  EXPECT_THAT(Pieces(*tokenizer, "<s><s>", kParse), ElementsAre("<s>", "<s>"));
  EXPECT_TRUE(tokenizer->IsSpecial(256));
}

TEST(AddedTokens, OthersAreAlwaysFound) {
  const auto tokenizer = With("usr", {});
  EXPECT_THAT(Pieces(*tokenizer, "ausrb"), ElementsAre("a", "usr", "b"));
  EXPECT_FALSE(tokenizer->IsSpecial(256));
}

TEST(AddedTokens, AreKnownByTheirTypeWhereTheSpecDoesNotListThem) {
  TokenizerSpec spec = ByteLevelSpec({});
  AddToken(&spec, "<s>", TokenType::kControl);
  AddToken(&spec, "<u>", TokenType::kUserDefined);
  AddToken(&spec, "<x>", TokenType::kUnknown);
  const auto tokenizer = Build(std::move(spec));
  EXPECT_THAT(Pieces(*tokenizer, "<u><s><x>", kParse), ElementsAre("<u>", "<s>", "<x>"));
  EXPECT_THAT(Pieces(*tokenizer, "<u><s>"), ElementsAre("<u>", "<", "s", ">"));
}

TEST(AddedTokens, TheLongestOfThoseAtAPlaceWins) {
  TokenizerSpec spec = ByteLevelSpec({});
  for (const char* content : {"  ", "   ", "ab", "abcd"}) AddToken(&spec, content, TokenType::kUserDefined);
  const auto tokenizer = Build(std::move(spec));
  EXPECT_THAT(Pieces(*tokenizer, "     "), ElementsAre("   ", "  "));
  EXPECT_THAT(Pieces(*tokenizer, "abcabcd"), ElementsAre("ab", "c", "abcd"));
}

TEST(AddedTokens, ASpecialTokenDoesNotHideAPlainOneWhenItIsText) {
  TokenizerSpec spec = ByteLevelSpec({});
  AddToken(&spec, "<abc>", TokenType::kControl);
  AddToken(&spec, "abc", TokenType::kUserDefined);
  const auto tokenizer = Build(std::move(spec));
  EXPECT_THAT(Pieces(*tokenizer, "<abc>"), ElementsAre("<", "abc", ">"));
  EXPECT_THAT(Pieces(*tokenizer, "<abc>", kParse), ElementsAre("<abc>"));
}

TEST(AddedTokens, StripSwallowsWhiteSpace) {
  EXPECT_THAT(Pieces(*With("<m>", {.lstrip = true}), "a \u3000\t<m> b"), ElementsAre("a", "<m>", "Ġ", "b"));
  EXPECT_THAT(Pieces(*With("<m>", {.rstrip = true}), "a <m>\n\u2003 b"), ElementsAre("a", "Ġ", "<m>", "b"));
  EXPECT_THAT(Pieces(*With("<m>", {.lstrip = true, .rstrip = true}), " <m> <m> "), ElementsAre("<m>", "<m>"));
  EXPECT_THAT(Pieces(*With("<m>", {.lstrip = true}), "<m>  "), ElementsAre("<m>", "Ġ", "Ġ"));
}

TEST(AddedTokens, SingleWordsStandAlone) {
  const auto tokenizer = With("is", {.single_word = true});
  EXPECT_THAT(Pieces(*tokenizer, "is"), ElementsAre("is"));
  EXPECT_THAT(Pieces(*tokenizer, "-is."), ElementsAre("-", "is", "."));
  EXPECT_THAT(Pieces(*tokenizer, "this"), ElementsAre("t", "h", "i", "s"));
  EXPECT_THAT(Pieces(*tokenizer, "is_"), ElementsAre("i", "s", "_"));
  EXPECT_THAT(Pieces(*tokenizer, "is\u00e9"), ElementsAre("i", "s", "Ã", "©"));
  EXPECT_THAT(Pieces(*tokenizer, "\u4f60is"), ElementsAre("ä", "½", "ł", "i", "s"));
}

TEST(AddedTokens, NormalizedOnesAreMatchedInNormalisedText) {
  TokenizerSpec spec = ByteLevelSpec({});
  spec.normalizer = Normalizer::kNfc;
  const int32_t composed = AddToken(&spec, "caf\u00e9", TokenType::kUserDefined);
  const int32_t raw = AddToken(&spec, "u\u0308", TokenType::kUserDefined);
  spec.added_tokens = {{.id = composed, .normalized = true}, {.id = raw}};
  const auto tokenizer = Build(std::move(spec));
  EXPECT_EQ(tokenizer->Encode("cafe\u0301", {}), std::vector<int32_t>{composed});
  EXPECT_EQ(tokenizer->Encode("caf\u00e9", {}), std::vector<int32_t>{composed});
  EXPECT_EQ(tokenizer->Encode("u\u0308", {}), std::vector<int32_t>{raw});
  EXPECT_EQ(tokenizer->Encode("\u00fc", {}), (std::vector<int32_t>{0xc3, 0xbc}));
}

TEST(AddedTokens, DecodeAsTheyAreSpelled) {
  EXPECT_EQ(With("<\u00e9 x>", {})->Decode(std::vector<int32_t>{256}, false), "<\u00e9 x>");
}

TEST(AddedTokens, SpecialOnesAreLeftOutOnRequest) {
  const auto tokenizer = With("<s>", {.special = true});
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{'a', 256, 'b'}, /*skip_special=*/false), "a<s>b");
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{'a', 256, 'b'}, /*skip_special=*/true), "ab");
  // a character whose bytes stand on both sides becomes whole
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{0xc3, 256, 0xa9}, /*skip_special=*/true), "\u00e9");
}

TEST(AddedTokens, ThatAreNotUtf8NeverMatch) {
  TokenizerSpec spec = ByteLevelSpec({});
  AddToken(&spec, "\xa9", TokenType::kUserDefined);
  EXPECT_THAT(Pieces(*Build(std::move(spec)), "\u00e9"), ElementsAre("Ã", "©"));
}

}  // namespace
}  // namespace swiftcache::gateway::text
