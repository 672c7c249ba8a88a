// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/card_size.h"

#include <gmock/gmock.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "swiftcache/v1/engine.pb.h"

namespace swiftcache {
namespace {

using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(CardSizeTest, AVocabularyOfAMillionTokensPassesWithAllThatItMayHave) {
  v1::ModelCard card;
  v1::TokenizerSpec& spec = *card.mutable_tokenizer();
  for (int i = 0; i < 1'000'000; ++i) {
    spec.add_tokens(absl::StrCat("token", i));
    spec.add_token_types(v1::TokenizerSpec::NORMAL);
    spec.add_scores(static_cast<float>(-i));
    spec.add_merges(i);
    spec.add_merges(i);
  }
  for (int i = 0; i < 10'000; ++i) spec.add_added_tokens()->set_id(i);
  EXPECT_EQ(CheckCardSize(card.SerializeAsString()), absl::OkStatus());
}

TEST(CardSizeTest, MoreFieldsNumbersOrBytesAreRefused) {
  v1::ModelCard tokens, scores, merges;
  for (int i = 0; i <= kCardLimits.fields; ++i) tokens.mutable_tokenizer()->add_tokens("");
  scores.mutable_tokenizer()->mutable_scores()->Resize(static_cast<int>(kCardLimits.numbers), -1.0f);
  merges = scores;
  EXPECT_EQ(CheckCardSize(scores.SerializeAsString()), absl::OkStatus()) << "four bytes are one number";
  scores.mutable_tokenizer()->add_scores(0);
  merges.mutable_tokenizer()->add_merges(0);
  EXPECT_THAT(Message(CheckCardSize(tokens.SerializeAsString())), HasSubstr("more than 2097152 fields"));
  EXPECT_THAT(Message(CheckCardSize(scores.SerializeAsString())), HasSubstr("more than 8388608 numbers"));
  EXPECT_THAT(Message(CheckCardSize(merges.SerializeAsString())), HasSubstr("more than 8388608 numbers"));
  const absl::Status status = CheckCardSize(std::string(static_cast<size_t>(kMaxCardBytes + 1), 'x'));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("134217729 bytes, wants at most 134217728"));
}

TEST(CardSizeTest, WhatIsNoCardIsRefused) {
  const absl::Status status = CheckCardSize("\xff\xff\xff");
  EXPECT_EQ(status, absl::InvalidArgumentError("model card: 3 bytes are not a ModelCard message"));
}

}  // namespace
}  // namespace swiftcache
