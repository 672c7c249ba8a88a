// SPDX-License-Identifier: Apache-2.0
#include "gateway/relay/prompt.h"

#include <gmock/gmock.h>

#include <vector>

#include "tests/gateway/relay/relay_fixture.h"

namespace swiftcache::gateway {
namespace {

using ::testing::ElementsAre;

class PromptTest : public RelayFixture {};

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
