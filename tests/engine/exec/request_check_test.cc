// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/request_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace swiftcache::engine::exec {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr RequestLimits kLimits{.vocab_size = 100, .max_model_len_tokens = 20};

template <typename Spoil, typename Matcher>
void ExpectRefused(Spoil spoil, const Matcher& message) {
  Request request;
  request.prompt = {1};
  ASSERT_EQ(CheckRequest(request, kLimits), absl::OkStatus());
  spoil(request);
  const absl::Status status = CheckRequest(request, kLimits);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), message);
}

// Clients are told which field it is by what the message begins with.
TEST(CheckRequestTest, BadPromptsNameTheIdAndTheVocabulary) {
  ExpectRefused([](Request& r) { r.prompt.clear(); }, StartsWith("token_ids is empty"));
  ExpectRefused(
      [](Request& r) {
        r.prompt = {99, 100};
      },
      "token_ids[1] is 100, the vocabulary has ids 0 to 99; tokenize with this model's tokenizer");
  ExpectRefused([](Request& r) { r.prompt.push_back(-1); }, StartsWith("token_ids[1] is -1"));
  ExpectRefused([](Request& r) { r.prompt.push_back(std::numeric_limits<int32_t>::min()); },
                StartsWith("token_ids[1]"));
  ExpectRefused([](Request& r) { r.stop_token_ids = {100}; }, StartsWith("stop_token_ids[0] is 100"));
}

TEST(CheckRequestTest, APromptThatLeavesNoRoomForATokenIsOutOfRange) {
  Request request;
  request.prompt.assign(20, 1);
  EXPECT_EQ(CheckRequest(request, kLimits).code(), absl::StatusCode::kOutOfRange);
  request.prompt.pop_back();
  EXPECT_EQ(CheckRequest(request, kLimits), absl::OkStatus());
}

TEST(CheckRequestTest, NumbersOutOfRangeAreRefusedAndSoIsNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, inf, -inf, -0.5f}) {
    ExpectRefused([&](Request& r) { r.sampling.temperature = bad; }, HasSubstr("temperature"));
  }
  for (const float bad : {nan, 0.0f, 7.0f}) {
    ExpectRefused([&](Request& r) { r.sampling.top_p = bad; }, HasSubstr("top_p"));
  }
  for (const float bad : {nan, -0.1f, 1.1f}) {
    ExpectRefused([&](Request& r) { r.sampling.min_p = bad; }, HasSubstr("min_p"));
  }
  for (const float bad : {nan, 0.0f, 11.0f}) {
    ExpectRefused([&](Request& r) { r.sampling.repetition_penalty = bad; }, HasSubstr("repetition_penalty"));
  }
  for (const float bad : {nan, -3.0f, 3.0f}) {
    ExpectRefused([&](Request& r) { r.sampling.presence_penalty = bad; }, HasSubstr("presence_penalty"));
    ExpectRefused([&](Request& r) { r.sampling.frequency_penalty = bad; }, HasSubstr("frequency_penalty"));
  }
  ExpectRefused([](Request& r) { r.sampling.top_k = -2; }, HasSubstr("top_k"));
  ExpectRefused([](Request& r) { r.max_tokens = 0; },
                "max_tokens is 0, wanted 1 or more; leave it out for what the model allows");
  ExpectRefused([](Request& r) { r.sampling.logprobs = 21; }, HasSubstr("logprobs"));
  for (const int32_t bad : {0, -1, 129}) {
    ExpectRefused([&](Request& r) { r.n = bad; }, HasSubstr("wanted 1 to 128; send several requests for more"));
  }
}

}  // namespace
}  // namespace swiftcache::engine::exec
