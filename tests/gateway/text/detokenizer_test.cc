// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/detokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "common/base/utf8.h"
#include "tests/gateway/text/specs.h"

namespace swiftcache::gateway::text {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kSpecial = 256;

std::unique_ptr<Tokenizer> Bytes() {
  TokenizerSpec spec = ByteLevelSpec({});
  AddToken(&spec, "<s>", TokenType::kControl);
  return Build(std::move(spec));
}

/// What each byte of `text` lets out, and then Flush. '\1' stands for a special token.
std::vector<std::string> Stream(const Tokenizer& tokenizer, const std::string& text,
                                const std::vector<std::string>& stop) {
  Detokenizer out(tokenizer, stop);
  std::vector<std::string> parts;
  for (const char c : text) parts.push_back(out.Push(c == '\1' ? kSpecial : static_cast<uint8_t>(c)));
  parts.push_back(out.Flush());
  return parts;
}

/// The end of the first stop string to be complete, and of those the longest, as the definition says it.
std::string NaiveCut(const std::string& text, const std::vector<std::string>& stop) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& s : stop) {
      if (s.size() <= end && text.compare(end - s.size(), s.size(), s) == 0) longest = std::max(longest, s.size());
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(Detokenizer, LetsTextOutAtOnceAndNeverHalfACharacter) {
  EXPECT_THAT(Stream(*Bytes(), "a\u00e9\U0001f600", {}), ElementsAre("a", "", "\u00e9", "", "", "", "\U0001f600", ""));
}

TEST(Detokenizer, MarksWhatNeverBecameACharacter) {
  EXPECT_THAT(Stream(*Bytes(), "\xf0\x9f", {}), ElementsAre("", "", "\ufffd"));
  EXPECT_THAT(Stream(*Bytes(),
                     "\xe4\xbd"
                     "a\x80",
                     {}),
              ElementsAre("", "", "\ufffda", "\ufffd", ""));
}

TEST(Detokenizer, SkipsSpecialTokensEvenWithinACharacter) {
  EXPECT_THAT(Stream(*Bytes(), "\xc3\1\xa9", {}), ElementsAre("", "", "\u00e9", ""));
}

TEST(Detokenizer, HoldsBackWhatMayBecomeAStopString) {
  EXPECT_THAT(Stream(*Bytes(), "ab-x--y", {"--y", "-z"}), ElementsAre("a", "b", "", "-x", "", "", "", ""));
  EXPECT_THAT(Stream(*Bytes(), "a--", {"--y"}), ElementsAre("a", "", "", "--"));
}

TEST(Detokenizer, StopsAndStaysStopped) {
  const auto tokenizer = Bytes();
  Detokenizer out(*tokenizer, {"b"});
  EXPECT_EQ(out.Push('a'), "a");
  EXPECT_FALSE(out.stopped());
  EXPECT_EQ(out.Push('b'), "");
  EXPECT_TRUE(out.stopped());
  EXPECT_EQ(out.Push('c'), "");
  EXPECT_EQ(out.Flush(), "");
}

TEST(Detokenizer, CutsAtTheStopStringThatIsCompleteFirst) {
  EXPECT_THAT(Stream(*Bytes(), "abcd", {"abcd", "bc"}), ElementsAre("", "", "a", "", ""));
  EXPECT_THAT(Stream(*Bytes(), "abc", {"c", "bc"}), ElementsAre("a", "", "", ""));
}

TEST(Detokenizer, IgnoresStopStringsThatCannotOccur) {
  EXPECT_THAT(Stream(*Bytes(), "\u00e9", {"", "\xa9", "\xc3"}), ElementsAre("", "\u00e9", ""));
}

TEST(Detokenizer, FindsAStopStringInTheMarkOfABrokenEnd) {
  const auto tokenizer = Bytes();
  Detokenizer out(*tokenizer, {"\ufffd"});
  EXPECT_EQ(out.Push('a'), "a");
  EXPECT_EQ(out.Push(0xc3), "");
  EXPECT_EQ(out.Flush(), "");
  EXPECT_TRUE(out.stopped());
}

TEST(Detokenizer, DropsTheLeadingSpaceOfSentencePiece) {
  const auto tokenizer = Build(ScoredSpec({"▁a", "▁", "b", "a"}));
  Detokenizer out(*tokenizer, {});
  EXPECT_EQ(out.Push(*tokenizer->bos_id()), "");
  EXPECT_EQ(out.Push(IdOf(tokenizer->spec(), "▁a")), "a");
  EXPECT_EQ(out.Push(IdOf(tokenizer->spec(), "▁a")), " a");
}

TEST(Detokenizer, KeepsTheSpaceOfWhatContinuesAPrompt) {
  const auto tokenizer = Build(ScoredSpec({"▁a", "▁", "b", "a"}));
  const std::vector<int32_t> prompt = tokenizer->Encode("a b", {});
  const std::vector<int32_t> answer = {IdOf(tokenizer->spec(), "▁a"), IdOf(tokenizer->spec(), "b")};
  Detokenizer out(*tokenizer, {}, TextStart::kContinuesPrompt);
  std::string text;
  for (const int32_t id : answer) text += out.Push(id);
  text += out.Flush();
  EXPECT_EQ(text, " ab");
  std::vector<int32_t> whole = prompt;
  whole.insert(whole.end(), answer.begin(), answer.end());
  EXPECT_EQ(tokenizer->Decode(prompt, true) + text, tokenizer->Decode(whole, true));
}

// Streaming equals decoding the whole, cut by the definition, for random bytes, special tokens and stop strings.
TEST(Detokenizer, EqualsDecodingTheWhole) {
  const auto tokenizer = Bytes();
  const uint32_t seed = 31337;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  int stopped = 0;
  for (int round = 0; round < 20'000; ++round) {
    const std::string alphabet = "ab\xc3\xa9\xf0\x9f\x98\x80\1";
    std::vector<int32_t> ids;
    for (uint32_t n = random() % 24; n > 0; --n) {
      const char c = alphabet[random() % alphabet.size()];
      ids.push_back(c == '\1' ? kSpecial : static_cast<uint8_t>(c));
    }
    const std::vector<std::string> letters = {"a", "b", "\u00e9", "\U0001f600", "\ufffd"};
    std::vector<std::string> stop(random() % 4);
    for (std::string& s : stop) {
      for (uint32_t n = 1 + random() % 4; n > 0; --n) s += letters[random() % letters.size()];
    }
    const std::string whole = NaiveCut(tokenizer->Decode(ids, /*skip_special=*/true), stop);
    Detokenizer out(*tokenizer, stop);
    std::string streamed;
    for (const int32_t id : ids) {
      const std::string part = out.Push(id);
      ASSERT_TRUE(IsValidUtf8(part));
      streamed += part;
    }
    streamed += out.Flush();
    stopped += out.stopped();
    ASSERT_EQ(streamed, whole) << "round " << round;
  }
  EXPECT_GT(stopped, 1000);
}

}  // namespace
}  // namespace swiftcache::gateway::text
