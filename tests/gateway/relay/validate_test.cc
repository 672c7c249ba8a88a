// SPDX-License-Identifier: Apache-2.0
#include "gateway/relay/validate.h"

#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/gateway/relay/relay_fixture.h"

namespace swiftcache::gateway {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr char kContextLength[] =
    "This model's maximum context length is 100 tokens";  // by these words clients know it

struct BadRequest {
  const char* name;
  std::function<void(relay::GenerateRequest&)> spoil;
  absl::StatusCode code;
  std::vector<std::string> message;
};

std::vector<BadRequest> BadRequests() {
  using R = relay::GenerateRequest;
  constexpr auto kBad = absl::StatusCode::kInvalidArgument;
  return {
      {"EmptyPrompt", [](R& r) { r.input = ""; }, kBad, {"prompt", "empty"}},
      {"InvalidUtf8", [](R& r) { r.input = "ab\xFF"; }, kBad, {"prompt", "0xff", "offset 2", "UTF-8"}},
      {"SurrogateInUtf8", [](R& r) { r.input = "\xED\xA0\x80"; }, kBad, {"prompt", "UTF-8"}},
      {"OverlongUtf8", [](R& r) { r.input = "\xC0\x80"; }, kBad, {"prompt", "UTF-8"}},
      {"CutUtf8", [](R& r) { r.input = "x\xE2\x82"; }, kBad, {"prompt", "offset 1"}},
      {"HugePrompt", [](R& r) { r.input = std::string(17 << 20, 'x'); }, kBad, {"prompt", "17825792", "16777216"}},
      {"NoIds", [](R& r) { r.input = std::vector<int32_t>{}; }, kBad, {"token_ids", "empty"}},
      {"NegativeId",
       [](R& r) {
         r.input = std::vector<int32_t>{1, -1};
       },
       kBad,
       {"token_ids[1]", "-1", "0..299"}},
      {"IdOutsideTheVocabulary", [](R& r) { r.input = std::vector<int32_t>{300}; }, kBad, {"token_ids[0]", "300"}},
      {"TooManyIds",
       [](R& r) { r.input = std::vector<int32_t>(100, 1); },
       absl::StatusCode::kOutOfRange,
       {"prompt has 100 tokens", "at most 99", "max_model_len", kContextLength}},
      {"TooLongText",
       [](R& r) { r.input = std::string(100, 'x'); },
       absl::StatusCode::kOutOfRange,
       {"max_model_len", kContextLength}},
      {"TooLongToTokenise",
       [](R& r) { r.input = std::string(10'000'000, 'x'); },
       absl::StatusCode::kOutOfRange,
       {"at least", "max_model_len", kContextLength}},
      {"MessagesTogetherTooLongToRender",
       [](R& r) {
         const std::string half(5'000'000, 'x');
         r.input = relay::Chat{.messages = {{"user", half}, {"user", half}}};
       },
       absl::StatusCode::kOutOfRange,
       {"at least", "max_model_len"}},
      {"NoMessages", [](R& r) { r.input = relay::Chat{}; }, kBad, {"chat.messages", "empty"}},
      {"EmptyRole",
       [](R& r) {
         r.input = relay::Chat{.messages = {{"", "x"}}};
       },
       kBad,
       {"chat.messages[0].role"}},
      {"LongRole",
       [](R& r) {
         r.input = relay::Chat{.messages = {{std::string(65, 'r'), "x"}}};
       },
       kBad,
       {"role", "65", "64"}},
      {"BadContent",
       [](R& r) {
         r.input = relay::Chat{.messages = {{"user", "\x80"}}};
       },
       kBad,
       {"messages[0].content"}},
      {"ReservedVariable",
       [](R& r) {
         r.input = relay::Chat{.messages = {{"user", "x"}}, .template_variables = {{"messages", true}}};
       },
       kBad,
       {"chat_template_kwargs.messages is set", "left out"}},
      {"LongNameOfAVariable",
       [](R& r) {
         r.input = relay::Chat{.messages = {{"user", "x"}}, .template_variables = {{std::string(257, 'n'), 1.0}}};
       },
       kBad,
       {"name in chat_template_kwargs", "257", "256"}},
      {"LongVariable",
       [](R& r) {
         r.input = relay::Chat{.messages = {{"user", "x"}}, .template_variables = {{"a", std::string(65'536, 'x')}}};
       },
       kBad,
       {"chat_template_kwargs", "65538", "65536"}},
      {"BadVariable",
       [](R& r) {
         r.input = relay::Chat{.messages = {{"user", "x"}}, .template_variables = {{"a", "\x80"}}};
       },
       kBad,
       {"chat_template_kwargs.a is not valid UTF-8"}},
      {"LongRequestId", [](R& r) { r.request_id = std::string(257, 'a'); }, kBad, {"request_id", "257", "256"}},
      {"RequestIdWithNewline", [](R& r) { r.request_id = "a\nb"; }, kBad, {"request_id", "0x0a", "offset 1"}},
      {"LongSalt", [](R& r) { r.cache_salt = std::string(257, 'a'); }, kBad, {"cache_salt", "257"}},
      {"NoTokens", [](R& r) { r.sampling.max_tokens = 0; }, kBad, {"sampling.max_tokens is 0", "[1,"}},
      {"NegativeTemperature", [](R& r) { r.sampling.temperature = -1; }, kBad, {"sampling.temperature is -1"}},
      {"NanTemperature", [](R& r) { r.sampling.temperature = kNan; }, kBad, {"sampling.temperature is nan"}},
      {"LargeTemperature", [](R& r) { r.sampling.temperature = 9; }, kBad, {"sampling.temperature is 9", "[0, 2]"}},
      {"InfiniteTemperature", [](R& r) { r.sampling.temperature = kInf; }, kBad, {"sampling.temperature is inf"}},
      {"LargeTopP", [](R& r) { r.sampling.top_p = 7; }, kBad, {"sampling.top_p is 7", "(0, 1]"}},
      {"ZeroTopP", [](R& r) { r.sampling.top_p = 0; }, kBad, {"sampling.top_p is 0"}},
      {"NanTopP", [](R& r) { r.sampling.top_p = kNan; }, kBad, {"sampling.top_p"}},
      {"BadTopK", [](R& r) { r.sampling.top_k = -2; }, kBad, {"sampling.top_k is -2"}},
      {"BadMinP", [](R& r) { r.sampling.min_p = 1.5; }, kBad, {"sampling.min_p is 1.5", "[0, 1]"}},
      {"ZeroRepetition", [](R& r) { r.sampling.repetition_penalty = 0; }, kBad, {"repetition_penalty is 0", "(0, 10]"}},
      {"BadPresence", [](R& r) { r.sampling.presence_penalty = 3; }, kBad, {"presence_penalty is 3", "[-2, 2]"}},
      {"BadFrequency", [](R& r) { r.sampling.frequency_penalty = -kInf; }, kBad, {"frequency_penalty is -inf"}},
      {"ManyLogprobs", [](R& r) { r.sampling.logprobs = 21; }, kBad, {"logprobs is 21", "[0, 20]"}},
      {"NoContinuation", [](R& r) { r.sampling.n = 0; }, kBad, {"sampling.n is 0", "[1, 128]"}},
      {"ManyContinuations", [](R& r) { r.sampling.n = 129; }, kBad, {"sampling.n is 129"}},
      {"ManyStops",
       [](R& r) { r.sampling.stop = text::StopStrings(std::vector<std::string>(100000, "x")); },
       kBad,
       {"sampling.stop", "100000", "16"}},
      {"EmptyStop",
       [](R& r) {
         r.sampling.stop = {"a", ""};
       },
       kBad,
       {"sampling.stop[1]", "empty"}},
      {"LongStop",
       [](R& r) { r.sampling.stop = {std::string(1025, 'x')}; },
       kBad,
       {"sampling.stop[0]", "1025", "1024"}},
      {"BadStop", [](R& r) { r.sampling.stop = {"\xF5"}; }, kBad, {"sampling.stop[0]", "UTF-8"}},
      {"ManyStopIds", [](R& r) { r.sampling.stop_token_ids.assign(129, 1); }, kBad, {"stop_token_ids", "129", "128"}},
      {"BadStopId", [](R& r) { r.sampling.stop_token_ids = {300}; }, kBad, {"sampling.stop_token_ids[0]", "300"}},
  };
}

class ValidateTest : public RelayFixture, public ::testing::WithParamInterface<BadRequest> {};

TEST_P(ValidateTest, IsRefusedBeforeAnEngineIsAsked) {
  Serve({"a"});
  relay::GenerateRequest request = Prompt("fine");
  GetParam().spoil(request);
  const absl::Status status = Run(request);
  EXPECT_EQ(status.code(), GetParam().code) << status;
  for (const std::string& part : GetParam().message) EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  EXPECT_LT(status.message().size(), 300);
  EXPECT_EQ(engines_["a"].calls(), 0);
}

INSTANTIATE_TEST_SUITE_P(BadRequests, ValidateTest, ::testing::ValuesIn(BadRequests()),
                         [](const auto& info) { return std::string(info.param.name); });

// With the words of the checks that follow once it is copied.
TEST_F(ValidateTest, WhatIsTooMuchIsRefusedByItsNumbersAlone) {
  Serve({"a"});
  EXPECT_EQ(relay_->CheckSizes("m", {.prompt_bytes = 16 << 20,
                                     .token_ids = 99,
                                     .messages = 4096,
                                     .template_variables = 64 << 10,
                                     .stop_strings = 16,
                                     .stop_token_ids = 128}),
            absl::OkStatus());
  EXPECT_EQ(relay_->CheckSizes("other", {}).code(), absl::StatusCode::kNotFound);
  relay::GenerateRequest ids = Prompt("");
  ids.input = std::vector<int32_t>(100);
  EXPECT_EQ(relay_->CheckSizes("m", {.token_ids = 100}), Run(ids));
  EXPECT_EQ(relay_->CheckSizes("m", {.token_ids = 100}).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(relay_->CheckSizes("m", {.prompt_bytes = (16 << 20) + 1}), Run(Prompt(std::string((16 << 20) + 1, 'x'))));
  const auto found = [this](const relay::RequestSizes& sizes) {
    return std::string(relay_->CheckSizes("m", sizes).message());
  };
  EXPECT_THAT(found({.messages = 4097}), HasSubstr("chat.messages has 4097 messages, wants at most 4096"));
  EXPECT_THAT(found({.template_variables = 65537}), HasSubstr("chat_template_kwargs has 65537 names"));
  EXPECT_THAT(found({.stop_strings = 17}), HasSubstr("sampling.stop has 17 strings, wants at most 16"));
  EXPECT_THAT(found({.stop_token_ids = 129}), HasSubstr("sampling.stop_token_ids has 129 ids, wants at most 128"));
}

TEST_F(ValidateTest, TheEndsOfEveryRangeAreAllowed) {
  Serve({"a"});
  relay::GenerateRequest request = Prompt(std::string(99, 'x'));
  request.request_id = std::string(256, '~');
  request.sampling.max_tokens = 1;
  request.sampling.temperature = 0;
  request.sampling.top_p = 1;
  request.sampling.top_k = -1;
  request.sampling.min_p = 1;
  request.sampling.stop = text::StopStrings(std::vector<std::string>(16, std::string(1024, 'z')));
  request.sampling.repetition_penalty = 10;
  request.sampling.presence_penalty = -2;
  request.sampling.frequency_penalty = 2;
  request.sampling.logprobs = 0;
  request.sampling.n = 1;
  request.sampling.stop_token_ids = {0, 299};
  EXPECT_EQ(Run(request), absl::OkStatus());
}

TEST_F(ValidateTest, ValidUtf8OfEveryLengthIsAllowed) {
  EXPECT_EQ(relay::CheckPrompt("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xF4\x8F\xBF\xBF", {}), absl::OkStatus());
}

}  // namespace
}  // namespace swiftcache::gateway
