// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/generate_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace swiftcache::engine::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const WireLimits kLimits{};

uint64_t Seven() { return 7; }

v1::EngineGenerateRequest Prompt(std::vector<int32_t> ids) {
  v1::EngineGenerateRequest request;
  request.mutable_token_ids()->Add(ids.begin(), ids.end());
  return request;
}

TEST(GenerateRequestTest, AbsentFieldsMeanTheirDefaults) {
  absl::StatusOr<exec::Request> request = ToRequest(Prompt({1, 2}), kLimits, Seven);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->prompt, ElementsAre(1, 2));
  EXPECT_EQ(request->sampling.temperature, 1.0f);
  EXPECT_EQ(request->sampling.top_p, 1.0f);
  EXPECT_EQ(request->sampling.top_k, 0);
  EXPECT_EQ(request->sampling.seed, 7u);
  EXPECT_EQ(request->sampling.logprobs, std::nullopt);
  EXPECT_EQ(request->max_tokens, std::nullopt);
  EXPECT_EQ(request->n, 1);
  EXPECT_EQ(request->request_id, "engine-0000000000000007");
}

TEST(GenerateRequestTest, WhatIsMeantForAnotherModelIsUnavailable) {
  const WireLimits limits{.model_name = "chat", .model_card_hash = "cafe"};
  v1::EngineGenerateRequest proto = Prompt({1'000});  // of a larger vocabulary
  proto.set_model_name("code");
  const absl::Status status = ToRequest(proto, limits, Seven).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("serves model chat (card cafe), wanted code"));
  proto.set_model_name("chat");
  proto.set_model_card_hash("beef");
  EXPECT_EQ(ToRequest(proto, limits, Seven).status().code(), absl::StatusCode::kUnavailable);
  proto.set_model_card_hash("cafe");
  proto.set_token_ids(0, 99);
  EXPECT_EQ(ToRequest(proto, limits, Seven).status(), absl::OkStatus());
}

TEST(GenerateRequestTest, EveryFieldIsTaken) {
  v1::EngineGenerateRequest proto = Prompt({99});
  proto.set_request_id("r1");
  proto.set_cache_salt("salt");
  proto.set_priority(-3);
  v1::Sampling& s = *proto.mutable_sampling();
  s.set_max_tokens(5);
  s.set_temperature(0);
  s.set_top_p(0.5f);
  s.set_top_k(-1);
  s.set_min_p(0.1f);
  s.set_seed(0);
  s.add_stop_token_ids(4);
  s.set_ignore_eos(true);
  s.set_repetition_penalty(1.5f);
  s.set_presence_penalty(-2);
  s.set_frequency_penalty(2);
  s.set_logprobs(0);
  s.set_n(128);
  absl::StatusOr<exec::Request> request = ToRequest(proto, kLimits, Seven);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->request_id, "r1");
  EXPECT_EQ(request->cache_salt, "salt");
  EXPECT_EQ(request->priority, -3);
  EXPECT_EQ(request->max_tokens, 5);
  EXPECT_EQ(request->sampling.temperature, 0.0f);
  EXPECT_EQ(request->sampling.top_p, 0.5f);
  EXPECT_EQ(request->sampling.top_k, 0);
  EXPECT_EQ(request->sampling.min_p, 0.1f);
  EXPECT_EQ(request->sampling.seed, 0u);
  EXPECT_THAT(request->stop_token_ids, ElementsAre(4));
  EXPECT_TRUE(request->ignore_eos);
  EXPECT_EQ(request->sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(request->sampling.presence_penalty, -2.0f);
  EXPECT_EQ(request->sampling.frequency_penalty, 2.0f);
  EXPECT_EQ(request->sampling.logprobs, 0);
  EXPECT_EQ(request->n, 128);
}

template <typename Spoil>
void ExpectRefused(Spoil spoil, const std::string& part) {
  v1::EngineGenerateRequest proto = Prompt({1});
  spoil(proto);
  const absl::Status status = ToRequest(proto, kLimits, Seven).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << part;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

TEST(GenerateRequestTest, LongTextsAndListsAreRefusedByTheirLimit) {
  ExpectRefused([](auto& r) { r.set_request_id(std::string(513, 'r')); }, "request_id has 513 bytes, the limit is 512");
  ExpectRefused([](auto& r) { r.set_cache_salt(std::string(1025, 's')); }, "cache_salt has 1025 bytes");
  ExpectRefused(
      [](auto& r) {
        for (int i = 0; i < 1025; ++i) r.mutable_sampling()->add_stop_token_ids(1);
      },
      "stop_token_ids has 1025 ids, the limit is 1024");
}

TEST(GenerateRequestTest, EventsOfOneIndexAppend) {
  exec::TokenEvent first, last;
  first.index = last.index = 2;
  first.token_ids = {5};
  first.logprobs = {{.token_id = 5, .logprob = -0.5f, .top = {{5, -0.5f}, {6, -1.5f}}}};
  last.token_ids = {7, 8};
  last.finish = exec::FinishReason::kLength;
  last.usage = exec::Usage{.prompt_tokens = 3,
                           .completion_tokens = 3,
                           .cached_local_tokens = 2,
                           .time_to_first_token = absl::Milliseconds(1500),
                           .queue_time = absl::Milliseconds(2)};
  v1::EngineGenerateResponse response = ToProto(first);
  EXPECT_FALSE(response.has_finish_reason());
  Append(last, response);
  EXPECT_EQ(response.index(), 2);
  EXPECT_THAT(response.token_ids(), ElementsAre(5, 7, 8));
  EXPECT_EQ(response.logprobs(0).top(1).token_id(), 6);
  EXPECT_EQ(response.finish_reason(), v1::LENGTH);
  EXPECT_EQ(response.usage().cached_tokens().local(), 2);
  EXPECT_EQ(response.usage().time_to_first_token().seconds(), 1);
  EXPECT_EQ(response.usage().time_to_first_token().nanos(), 500'000'000);
}

}  // namespace
}  // namespace swiftcache::engine::rpc
