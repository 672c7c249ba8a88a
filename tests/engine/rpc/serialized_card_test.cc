// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/serialized_card.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "swiftcache/v1/engine.pb.h"
#include "tests/engine/rpc/cards.h"

namespace swiftcache::engine::rpc {
namespace {

using ::testing::ElementsAre;

TEST(ModelCardTest, EveryFieldIsOnTheWire) {
  absl::StatusOr<SerializedCard> card = SerializeModelCard(SomeCard());
  ASSERT_TRUE(card.ok()) << card.status();
  v1::ModelCard proto;
  ASSERT_TRUE(proto.ParseFromString(card->bytes));
  const v1::TokenizerSpec& t = proto.tokenizer();
  EXPECT_EQ(proto.chat_template(), "{{ messages }}");
  EXPECT_EQ(proto.vocab_size(), 8);
  EXPECT_EQ(t.kind(), v1::TokenizerSpec::SENTENCEPIECE_BPE);
  EXPECT_THAT(t.tokens(), ElementsAre("<s>", "a", std::string("\xff\x00", 2), "aa"));
  EXPECT_THAT(t.token_types(), ElementsAre(v1::TokenizerSpec::CONTROL, v1::TokenizerSpec::NORMAL,
                                           v1::TokenizerSpec::BYTE, v1::TokenizerSpec::USER_DEFINED));
  EXPECT_THAT(t.scores(), ElementsAre(0.0f, -1.0f, -2.0f, -3.5f));
  EXPECT_THAT(t.merges(), ElementsAre(1, 1, 1, 3));
  ASSERT_EQ(t.pre_tokenizer_size(), 2);
  EXPECT_EQ(t.pre_tokenizer(0).split_regex(), "\\p{L}+");
  EXPECT_TRUE(t.pre_tokenizer(1).individual_digits());
  EXPECT_EQ(t.normalizer(), v1::TokenizerSpec::NFC);
  ASSERT_EQ(t.added_tokens_size(), 1);
  EXPECT_EQ(t.added_tokens(0).id(), 3);
  EXPECT_TRUE(t.added_tokens(0).special() && t.added_tokens(0).rstrip() && t.added_tokens(0).normalized());
  EXPECT_FALSE(t.added_tokens(0).lstrip() || t.added_tokens(0).single_word());
  EXPECT_EQ(t.bos_id(), 0);
  EXPECT_EQ(t.eos_id(), 2);
  EXPECT_TRUE(t.has_unk_id());
  EXPECT_TRUE(t.add_space_prefix() && t.add_bos() && t.fuse_unk() && t.escape_whitespaces());
  EXPECT_FALSE(t.byte_fallback() || t.ignore_merges() || t.add_eos() || t.remove_extra_whitespaces() ||
               t.space_prefix_first_only());
}

TEST(ModelCardTest, TheHashNamesTheContent) {
  const SerializedCard card = *SerializeModelCard(SomeCard());
  EXPECT_EQ(card.hash.size(), 64u);
  EXPECT_EQ(card.hash.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(SerializeModelCard(SomeCard())->hash, card.hash);
  loader::ModelCard other = SomeCard();
  other.tokenizer.add_eos = true;
  EXPECT_NE(SerializeModelCard(other)->hash, card.hash);
  // printf '\x0a\x02\x08\x01' | sha256sum: a card with nothing but the kind of its tokenizer.
  EXPECT_EQ(SerializeModelCard(loader::ModelCard{})->hash,
            "59948439065f29619ef41280cbb932be52c56d99c5966b65e0111239f098bbef");
}

TEST(ModelCardTest, ACardThatGatewaysWouldRefuseIsNotServed) {
  loader::ModelCard card = SomeCard();
  card.tokenizer.tokens.resize((1 << 21) + 1);
  const absl::Status status = SerializeModelCard(card).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("more than 2097152 fields"));
}

TEST(ModelCardTest, TextThatIsNotUtf8IsRefused) {
  loader::ModelCard card = SomeCard();
  card.chat_template = "\xff";
  EXPECT_EQ(SerializeModelCard(card).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace swiftcache::engine::rpc
