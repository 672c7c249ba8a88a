// SPDX-License-Identifier: Apache-2.0
// Input that is meant to hang a tokenizer: 10 MB without a space, a hundred thousand stop strings. The limits are many
// times what a slow machine takes, and far below what quadratic work would.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <iostream>
#include <random>

#include "gateway/text/detokenizer.h"
#include "tests/gateway/text/specs.h"

namespace swiftcache::gateway::text {
namespace {

constexpr size_t kPromptBytes = 2 << 20;
constexpr double kLimitSeconds = 60;

double Seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string Repeat(const std::string& unit) {
  std::string text;
  text.reserve(kPromptBytes);
  while (text.size() + unit.size() <= kPromptBytes) text += unit;
  return text;
}

std::string RandomLetters(const std::string& alphabet) {
  std::mt19937 random(1);
  std::string text(kPromptBytes, ' ');
  for (char& c : text) c = alphabet[random() % alphabet.size()];
  return text;
}

struct Prompt {
  std::string name;
  std::function<std::string()> text;
};

class LargePrompt : public testing::TestWithParam<Prompt> {
 protected:
  void ExpectQuick(TokenizerSpec spec) {
    const auto tokenizer = Build(std::move(spec));
    const std::string text = GetParam().text();
    std::vector<int32_t> ids;
    const double seconds = Seconds([&] { ids = tokenizer->Encode(text, {.parse_special = true}); });
    std::cout << GetParam().name << ": " << text.size() << " bytes, " << ids.size() << " tokens, " << seconds << " s\n";
    EXPECT_LT(seconds, kLimitSeconds);
    EXPECT_FALSE(ids.empty());
    const bool changed = tokenizer->spec().normalizer != Normalizer::kNone;
    EXPECT_TRUE(changed || tokenizer->Decode(ids, false) == text);
  }
};

/// Merges that give runs and pairs of letters, so that long words keep the queue busy.
std::vector<std::string> BusyMerges() {
  std::vector<std::string> merges = {"a a", "aa aa", "aaaa aaaa", "Ġ Ġ", "ĠĠ ĠĠ"};
  for (char left = 'a'; left <= 'z'; ++left) {
    for (char right = 'b'; right <= 'z'; ++right) merges.push_back({left, ' ', right});
  }
  return merges;
}

TEST_P(LargePrompt, ByteLevel) {
  TokenizerSpec spec = ByteLevelSpec(BusyMerges());
  spec.pre_tokenizer = {{PreTokenizerStep::Kind::kSplitRegex, kLlama3Regex}};
  AddToken(&spec, "<|im_start|>", TokenType::kControl);
  ExpectQuick(std::move(spec));
}

TEST_P(LargePrompt, ByteLevelWithNfc) {
  TokenizerSpec spec = ByteLevelSpec(BusyMerges());
  spec.normalizer = Normalizer::kNfc;
  spec.pre_tokenizer = {{PreTokenizerStep::Kind::kSplitRegex, kGpt2Regex}};
  ExpectQuick(std::move(spec));
}

TEST_P(LargePrompt, SentencePiece) {
  std::vector<std::string> pieces = {"▁", "▁▁", "a", "aa", "aaaa"};
  for (char c = 'b'; c <= 'z'; ++c) pieces.push_back({'a', c});
  ExpectQuick(ScoredSpec(pieces));
}

INSTANTIATE_TEST_SUITE_P(All, LargePrompt,
                         testing::Values(Prompt{"OneLetter", [] { return std::string(kPromptBytes, 'a'); }},
                                         Prompt{"RandomWord",
                                                [] { return RandomLetters("abcdefghijklmnopqrstuvwxyz"); }},
                                         Prompt{"Spaces", [] { return std::string(kPromptBytes, ' '); }},
                                         Prompt{"SpacesAndNewlines", [] { return RandomLetters(" \n"); }},
                                         Prompt{"Quotes", [] { return std::string(kPromptBytes, '\''); }},
                                         Prompt{"Marks", [] { return Repeat("\u0301\u0316"); }},
                                         Prompt{"HalfSpecialTokens", [] { return Repeat("<|im_star"); }}),
                         [](const testing::TestParamInfo<Prompt>& info) { return info.param.name; });

TEST(LargeInput, ManyLongStopStringsDoNotSlowAStream) {
  std::mt19937 random(5);
  std::vector<std::string> stop = {std::string(1 << 20, 'a') + "b"};  // always nearly complete
  for (int i = 0; i < 100'000; ++i) stop.push_back("stop" + std::to_string(random()));
  const auto tokenizer = Build(ByteLevelSpec({}));
  const double seconds = Seconds([&] {
    Detokenizer out(*tokenizer, stop);
    std::string text;
    for (int i = 0; i < 3 << 20; ++i) text += out.Push('a');
    text += out.Flush();
    EXPECT_EQ(text.size(), 3 << 20);
  });
  std::cout << "stop strings: " << seconds << " s\n";
  EXPECT_LT(seconds, kLimitSeconds);
}

}  // namespace
}  // namespace swiftcache::gateway::text
