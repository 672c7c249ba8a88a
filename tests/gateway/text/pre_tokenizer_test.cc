// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/gateway/text/specs.h"

namespace swiftcache::gateway::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const PreTokenizerStep kDigits = {PreTokenizerStep::Kind::kIndividualDigits, ""};

std::vector<std::string> Split(const std::vector<PreTokenizerStep>& steps, std::string_view text) {
  auto pre = PreTokenizer::Create(steps);
  EXPECT_TRUE(pre.ok()) << pre.status();
  PreTokenizer::Scratch scratch;
  std::vector<std::string> pieces;
  if (pre.ok()) pre->Split(text, &scratch, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

TEST(PreTokenizer, SplitsAsGpt2) {
  EXPECT_THAT(Split({Regex(kGpt2Regex)}, "Don't  stop 123!\n\nok "),
              ElementsAre("Don", "'t", " ", " stop", " 123", "!", "\n", "\n", "ok", " "));
}

TEST(PreTokenizer, SplitsAsLlama3) {
  EXPECT_THAT(Split({Regex(kLlama3Regex)}, "I'LL pay 12345 $\r\n  x"),
              ElementsAre("I", "'LL", " pay", " ", "123", "45", " $\r\n", " ", " x"));
}

TEST(PreTokenizer, TakesNumericCharactersOfEveryScriptOneByOne) {
  EXPECT_THAT(Split({kDigits, Regex(kGpt2Regex)}, "a  12\u00b2\u2167"),
              ElementsAre("a", "  ", "1", "2", "\u00b2", "\u2167"));
}

TEST(PreTokenizer, GivesTheTextBetweenMatchesToo) {
  EXPECT_THAT(Split({Regex("b+")}, "aabbcb"), ElementsAre("aa", "bb", "c", "b"));
  EXPECT_THAT(Split({}, "as it is"), ElementsAre("as it is"));
  EXPECT_THAT(Split({Regex("x")}, ""), ElementsAre());
}

TEST(PreTokenizer, PassesOverEmptyMatches) {
  EXPECT_THAT(Split({Regex("b*")}, "abba"), ElementsAre("a", "bb", "a"));
  EXPECT_THAT(Split({Regex("(?=b)")}, "abb"), ElementsAre("abb"));
  EXPECT_THAT(Split({Regex("^")}, "abb"), ElementsAre("abb"));
}

// PCRE2's own \s takes U+180E; Unicode's White_Space, Oniguruma and Rust do not.
TEST(PreTokenizer, MeansUnicodesWhiteSpaceBySpace) {
  EXPECT_THAT(Split({Regex("\\s+")}, "a\u180e b"), ElementsAre("a\u180e", " ", "b"));
  EXPECT_THAT(Split({Regex("\\S+")}, "a\u180e\u2003b"), ElementsAre("a\u180e", "\u2003", "b"));
  EXPECT_THAT(Split({Regex("[^\\s[:alpha:]\\s]+")}, "a\u180e b\u0085"), ElementsAre("a", "\u180e", " b\u0085"));
  EXPECT_THAT(Split({Regex("\\\\s")}, "a\\s"), ElementsAre("a", "\\s"));
}

TEST(PreTokenizer, NamesTheStepThatDoesNotCompile) {
  const auto pre = PreTokenizer::Create({Regex("a"), Regex("b(")});
  ASSERT_EQ(pre.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(pre.status().message()), HasSubstr("step 1: 'b('"));
}

TEST(PreTokenizer, DoesNotMatchSingleBytes) {
  EXPECT_EQ(PreTokenizer::Create({Regex("\\C")}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PreTokenizer, TakesTheRestAsOnePieceWherePcreGivesUp) {
  const std::string hopeless = std::string(40, 'a') + "!";
  EXPECT_THAT(Split({Regex("x|(a+)+b")}, "x" + hopeless), ElementsAre("x", hopeless));
}

// Each round of the group takes stack: PCRE2's JIT has not enough for this match, its interpreter has.
TEST(PreTokenizer, AsksTheInterpreterWhereTheJitStackIsTooSmall) {
  const std::string run(100'000, 'a');
  EXPECT_THAT(Split({Regex("(?:(a)|b)+")}, run + "!a"), ElementsAre(run, "!", "a"));
}

TEST(PreTokenizer, GivesUpOnAMatchThatNeedsTooMuchMemory) {
  const std::string text = std::string(2 << 20, 'a') + "!a";
  EXPECT_THAT(Split({Regex("(?:(a)|b)+")}, text), ElementsAre(text));
}

// One alternative walks back over all the spaces before the next takes them; PCRE2's default limit is below 12 million.
TEST(PreTokenizer, DoesNotGiveUpOnALongRunOfSpaces) {
  const std::string spaces(12'000'000, ' ');
  EXPECT_THAT(Split({Regex(kLlama3Regex)}, spaces + " b c"), ElementsAre(spaces, " b", " c"));
}

TEST(PreTokenizer, KeepsItsPlaceWhenAMatchClaimsToBeginElsewhere) {
  EXPECT_THAT(Split({Regex("a\\Kb")}, "aab"), ElementsAre("aa", "b"));
  EXPECT_THAT(Split({Regex("(?(DEFINE)(?<k>ab\\K))(?=(?&k))")}, "aab"), ElementsAre("aab"));
}

}  // namespace
}  // namespace swiftcache::gateway::text
