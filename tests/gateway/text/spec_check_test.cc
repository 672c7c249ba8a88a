// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/spec_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "tests/gateway/text/specs.h"

namespace swiftcache::gateway::text {
namespace {

using ::testing::HasSubstr;

struct Case {
  std::string name;
  std::function<void(TokenizerSpec&)> break_it;
  std::string message;
};

class RefusedSpec : public testing::TestWithParam<Case> {};

TEST_P(RefusedSpec, NamesFieldFoundAndWanted) {
  TokenizerSpec spec = ByteLevelSpec({"h e"});
  GetParam().break_it(spec);
  const auto tokenizer = Tokenizer::Create(spec);
  ASSERT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(GetParam().message));
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("wanted"));
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedSpec,
    testing::Values(
        Case{"NoTokens", [](TokenizerSpec& s) { s = {}; }, "tokens: found none"},
        Case{"TypesShort", [](TokenizerSpec& s) { s.token_types.pop_back(); },
             "token_types: found 256 entries, wanted 257"},
        Case{"ScoresShort", [](TokenizerSpec& s) { s.scores = {1}; }, "scores: found 1 entries"},
        Case{"ScoreNan",
             [](TokenizerSpec& s) {
               s.scores.assign(s.tokens.size(), 0);
               s.scores[7] = std::numeric_limits<float>::quiet_NaN();
             },
             "scores[7]: found nan"},
        Case{"MergeRange", [](TokenizerSpec& s) { s.merges.emplace_back(1, 257); }, "merges[1]: found id 257"},
        Case{"MergeNegative", [](TokenizerSpec& s) { s.merges.emplace_back(-1, 1); }, "merges[1]: found id -1"},
        Case{"MergeEmpty", [](TokenizerSpec& s) { s.tokens[104] = ""; }, "merges[0]: found an empty token"},
        Case{"MergeUnknown", [](TokenizerSpec& s) { s.merges.emplace_back('x', 'y'); },
             "merges[1]: tokens 120 and 121 give 'xy', which is not in the vocabulary"},
        Case{"BosRange", [](TokenizerSpec& s) { s.bos_id = 257; }, "bos_id: found id 257, wanted an id from 0 to 256"},
        Case{"EosRange", [](TokenizerSpec& s) { s.eos_id = -5; }, "eos_id: found id -5"},
        Case{"UnkRange", [](TokenizerSpec& s) { s.unk_id = 1 << 30; }, "unk_id: found id"},
        Case{"NoBos", [](TokenizerSpec& s) { s.add_bos = true; }, "bos_id: found none"},
        Case{"NoEos", [](TokenizerSpec& s) { s.add_eos = true; }, "eos_id: found none"},
        Case{"AddedRange", [](TokenizerSpec& s) { s.added_tokens = {{.id = 257}}; }, "added_tokens[0]: found id 257"},
        Case{"AddedEmpty",
             [](TokenizerSpec& s) {
               s.tokens[3] = "";
               s.added_tokens = {{.id = 3}};
             },
             "added_tokens[0]: found an empty token"},
        Case{"Regex",
             [](TokenizerSpec& s) {
               s.pre_tokenizer = {{PreTokenizerStep::Kind::kSplitRegex, "["}};
             },
             "pre_tokenizer step 0: '['"}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

TEST(SpecCheck, TakesWhatIsRight) {
  EXPECT_EQ(CheckSpec(ByteLevelSpec({"h e"})), absl::OkStatus());
  EXPECT_EQ(CheckSpec(ScoredSpec({"a"})), absl::OkStatus());
}

TEST(SpecCheck, TakesGapsAndRepetitionsInTheVocabulary) {
  TokenizerSpec spec = ByteLevelSpec({"h e"});
  AddToken(&spec, "", TokenType::kUnused);
  AddToken(&spec, "he", TokenType::kNormal);
  const auto tokenizer = Build(std::move(spec));
  EXPECT_EQ(tokenizer->Encode("he", {}), std::vector<int32_t>{256});  // the lowest id
  EXPECT_EQ(tokenizer->TokenBytes(257), "");
  EXPECT_EQ(tokenizer->TokenBytes(258), "he");
}

}  // namespace
}  // namespace swiftcache::gateway::text
