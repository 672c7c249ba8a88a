// SPDX-License-Identifier: Apache-2.0
// SentencePiece-style BPE (Llama 2, LWM, Mistral): by scores as in GGUF, by ranked merges as in tokenizer.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/gateway/text/specs.h"

namespace swiftcache::gateway::text {
namespace {

using ::testing::ElementsAre;

TokenizerSpec HelloSpec() {
  return ScoredSpec({"he", "ll", "▁w", "hell", "hello", "▁hello", "▁▁", "▁", "h", "e", "l", "o", "w"});
}

/// The same vocabulary without scores: `merges` rank instead.
TokenizerSpec RankedSpec(const std::vector<std::string>& letters, const std::vector<std::string>& merges) {
  TokenizerSpec spec = ScoredSpec(letters);
  spec.scores.clear();
  AddMerges(&spec, merges);
  return spec;
}

TEST(SentencePiece, MergesTheHighestScoreFirst) {
  const auto tokenizer = Build(HelloSpec());
  EXPECT_THAT(Pieces(*tokenizer, "hello w"), ElementsAre("▁hello", "▁w"));
  EXPECT_THAT(Pieces(*tokenizer, "hellll"), ElementsAre("▁", "hell", "ll"));
  EXPECT_THAT(Pieces(*tokenizer, ""), ElementsAre());
}

TEST(SentencePiece, TakesTheLeftmostOfEqualScores) {
  TokenizerSpec spec = ScoredSpec({"ab", "bc", "a", "b", "c"});
  for (float& score : spec.scores) score = 0;
  spec.add_space_prefix = false;
  EXPECT_THAT(Pieces(*Build(std::move(spec)), "abcbc"), ElementsAre("ab", "c", "bc"));
}

TEST(SentencePiece, PutsOneSpaceBeforeTheTextEvenIfThereIsOne) {
  const auto tokenizer = Build(HelloSpec());
  EXPECT_THAT(Pieces(*tokenizer, " hello"), ElementsAre("▁", "▁hello"));
  TokenizerSpec spec = HelloSpec();
  spec.add_space_prefix = false;
  EXPECT_THAT(Pieces(*Build(std::move(spec)), " hello"), ElementsAre("▁hello"));
}

TEST(SentencePiece, PutsTheSpaceAfterEverySpecialToken) {
  const auto tokenizer = Build(HelloSpec());
  EXPECT_THAT(Pieces(*tokenizer, "hello</s>hello", {.parse_special = true}), ElementsAre("▁hello", "</s>", "▁hello"));
}

TEST(SentencePiece, PutsTheSpaceAtTheBeginningAloneWhereTheSpecSaysSo) {
  TokenizerSpec spec = HelloSpec();
  spec.space_prefix_first_only = true;
  const auto tokenizer = Build(std::move(spec));
  EXPECT_THAT(Pieces(*tokenizer, "hello</s>hello", {.parse_special = true}), ElementsAre("▁hello", "</s>", "hello"));
  EXPECT_THAT(Pieces(*tokenizer, "</s>hello", {.parse_special = true}), ElementsAre("</s>", "hello"));
  EXPECT_THAT(Pieces(*tokenizer, " hello"), ElementsAre("▁hello"));
}

// tokenizer.json's Metaspace comes after all added tokens have been found, also those of normalized text.
TEST(SentencePiece, PutsTheSpaceAtTheBeginningOfNoAddedToken) {
  TokenizerSpec spec = HelloSpec();
  spec.space_prefix_first_only = true;
  spec.added_tokens = {{.id = AddToken(&spec, "<tool>", TokenType::kUserDefined), .normalized = true}};
  const auto tokenizer = Build(std::move(spec));
  EXPECT_THAT(Pieces(*tokenizer, "hello<tool>hello"), ElementsAre("▁hello", "<tool>", "hello"));
  EXPECT_THAT(Pieces(*tokenizer, "hello <tool> hello"), ElementsAre("▁hello", "▁", "<tool>", "▁hello"));
  EXPECT_THAT(Pieces(*tokenizer, "<tool>hello"), ElementsAre("<tool>", "hello"));
}

TEST(SentencePiece, SpellsUnknownCharactersInBytes) {
  const auto tokenizer = Build(HelloSpec());
  EXPECT_THAT(Pieces(*tokenizer, "\u00e9o"), ElementsAre("▁", "<0xC3>", "<0xA9>", "o"));
  EXPECT_THAT(Pieces(*tokenizer, "\n"), ElementsAre("▁", "<0x0A>"));
}

TEST(SentencePiece, TakesTheUnknownTokenWhereThereAreNoBytes) {
  TokenizerSpec spec = HelloSpec();
  spec.byte_fallback = false;
  EXPECT_THAT(Pieces(*Build(spec), "xyo z"), ElementsAre("▁", "<unk>", "<unk>", "o", "▁", "<unk>"));
  spec.fuse_unk = true;
  EXPECT_THAT(Pieces(*Build(spec), "xyo z"), ElementsAre("▁", "<unk>", "o", "▁", "<unk>"));
  EXPECT_THAT(Pieces(*Build(spec), "x</s>x", {.parse_special = true}), ElementsAre("▁", "<unk>", "</s>", "▁", "<unk>"));
  spec.unk_id = std::nullopt;
  EXPECT_THAT(Pieces(*Build(spec), "xo"), ElementsAre("▁", "o"));
}

TEST(SentencePiece, NeverReadsControlOrByteTokensOutOfPlainText) {
  TokenizerSpec spec = ScoredSpec({"<", "s", ">", "s>", "0", "x", "A", "<0", "x0", "0A", "A>", "▁"});
  const auto tokenizer = Build(std::move(spec));
  EXPECT_THAT(Pieces(*tokenizer, "<s>"), ElementsAre("▁", "<", "s>"));
  for (const std::string& piece : Pieces(*tokenizer, "<0x0A>")) EXPECT_NE(piece, "<0x0A>");
}

// "b" is no token, but "ab" is.
TEST(SentencePiece, MergesCharactersThatAreNoTokensThemselves) {
  const auto tokenizer = Build(ScoredSpec({"ab", "a", "▁"}));
  EXPECT_THAT(Pieces(*tokenizer, "abb"), ElementsAre("▁", "ab", "<0x62>"));
}

TEST(SentencePiece, MergesAcrossWordsIfTheVocabularyDoes) {
  const auto tokenizer = Build(ScoredSpec({"a▁b", "a▁", "▁", "a", "b"}));
  EXPECT_THAT(Pieces(*tokenizer, "a b"), ElementsAre("▁", "a▁b"));
}

TEST(SentencePiece, RemovesExtraSpacesWhereTheSpecSaysSo) {
  TokenizerSpec spec = HelloSpec();
  spec.remove_extra_whitespaces = true;
  EXPECT_THAT(Pieces(*Build(std::move(spec)), "  hello   w "), ElementsAre("▁hello", "▁w"));
}

TEST(SentencePiece, MergesByRankWithoutScores) {
  TokenizerSpec spec = RankedSpec({"▁", "a", "b", "c"}, {"b c", "a b", "▁ a"});
  const auto tokenizer = Build(std::move(spec));
  EXPECT_THAT(Pieces(*tokenizer, "abc"), ElementsAre("▁a", "bc"));
  EXPECT_THAT(Pieces(*tokenizer, "ab\u00e9"), ElementsAre("▁", "ab", "<0xC3>", "<0xA9>"));
}

TEST(SentencePiece, CutsByThePreTokenizerIfThereIsOne) {
  TokenizerSpec spec = RankedSpec({"▁", "a"}, {"▁ ▁", "▁ a"});
  spec.add_space_prefix = false;
  EXPECT_THAT(Pieces(*Build(spec), "  a"), ElementsAre("▁▁", "a"));
  spec.pre_tokenizer = {{PreTokenizerStep::Kind::kSplitRegex, "▁[^▁]*|[^▁]+"}};
  EXPECT_THAT(Pieces(*Build(spec), "  a"), ElementsAre("▁", "▁a"));
}

TEST(SentencePiece, DecodeTakesTheLeadingSpaceBack) {
  const auto tokenizer = Build(HelloSpec());
  const auto ids = [&](std::vector<std::string> pieces) {
    std::vector<int32_t> out;
    for (const std::string& piece : pieces) out.push_back(IdOf(tokenizer->spec(), piece));
    return out;
  };
  EXPECT_EQ(tokenizer->Decode(ids({"▁hello", "▁w"}), true), "hello w");
  EXPECT_EQ(tokenizer->Decode(ids({"▁▁", "h"}), true), " h");
  EXPECT_EQ(tokenizer->Decode(ids({"<s>", "▁hello"}), /*skip_special=*/true), "hello");
  EXPECT_EQ(tokenizer->Decode(ids({"<s>", "▁hello"}), /*skip_special=*/false), "<s> hello");
  EXPECT_EQ(tokenizer->Decode(ids({"<0xC3>", "<0xA9>", "<0xC3>"}), true), "\u00e9\ufffd");
  EXPECT_EQ(tokenizer->TokenBytes(ids({"▁hello"})[0]), " hello");
  EXPECT_EQ(tokenizer->TokenBytes(ids({"<0x0A>"})[0]), "\n");
}

TEST(SentencePiece, GivesRandomTextBack) {
  const auto tokenizer = Build(HelloSpec());
  const uint32_t seed = 7;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (uint32_t n = random() % 30; n > 0; --n) {
      char32_t c = random() % 4 == 0 ? 1 + random() % 0x11000 : "helow \n"[random() % 7];
      if ((c >= 0xd800 && c <= 0xdfff) || c == 0x2581) c = 'x';
      AppendUtf8(c, &text);
    }
    ASSERT_EQ(tokenizer->Decode(tokenizer->Encode(text, {}), false), text);
  }
}

}  // namespace
}  // namespace swiftcache::gateway::text
