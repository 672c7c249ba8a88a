// SPDX-License-Identifier: Apache-2.0
#include "gateway/relay/prompt.h"

#include <gmock/gmock.h>

#include <string>
#include <variant>
#include <vector>

#include "tests/gateway/relay/relay_fixture.h"

namespace swiftcache::gateway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PromptTest : public RelayFixture {};

// The longest token has 12 bytes, the model takes 100 tokens.
TEST_F(PromptTest, WhatIsTooLongForAnyTokenisationIsNotTokenisedToCountItEither) {
  Serve({"a"});
  EXPECT_EQ(relay_->Tokenize("m", std::string(1199, 'x'), false)->size(), 1199u) << "more than the model takes";
  const relay::Chat chat{.messages = {{"user", std::string(1200, 'x')}}};
  for (const auto& input :
       {std::variant<std::string, relay::Chat>(std::string(1200, 'x')), std::variant<std::string, relay::Chat>(chat)}) {
    const absl::Status status = relay_->Tokenize("m", input, false).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(std::string(status.message()), HasSubstr("prompt has at least 100 tokens, wants at most 99"));
  }
}

// As a client renders it by a chat template, so that it begins with the model's token already.
TEST_F(PromptTest, ATextThatBeginsWithTheBeginTokenGetsNoSecondOneOnRequest) {
  fleet::ModelCard card = fakes::ByteModelCard("");
  card.tokenizer.bos_id = fakes::kImStart;
  card.tokenizer.add_bos = true;
  engines_["a"].SetCard(card);
  Serve({"a"});
  std::vector<std::vector<int32_t>> prompts;
  engines_["a"].SetScript([&](fakes::FakeCall& call) {
    prompts.push_back(call.request().token_ids);
    fakes::SayHello(call);
  });
  relay::GenerateRequest request = Prompt("<|im_start|>a");
  ASSERT_EQ(Run(request), absl::OkStatus());
  request.add_special = false;
  ASSERT_EQ(Run(request), absl::OkStatus());
  EXPECT_THAT(prompts,
              ElementsAre(ElementsAre(fakes::kImStart, fakes::kImStart, 'a'), ElementsAre(fakes::kImStart, 'a')));
}

}  // namespace
}  // namespace swiftcache::gateway
