// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/sampling_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace swiftcache::engine::sample {
namespace {

using ::testing::HasSubstr;

TEST(SamplingParamsTest, DefaultsAndBordersAreAccepted) {
  EXPECT_TRUE(SamplingParams{}.Validate().ok());
  SamplingParams borders{.temperature = 0, .top_p = 1, .top_k = -1, .min_p = 1, .repetition_penalty = 10};
  borders.presence_penalty = -2;
  borders.frequency_penalty = 2;
  borders.logprobs = 20;
  EXPECT_TRUE(borders.Validate().ok());
}

TEST(SamplingParamsTest, EachFieldOutOfRangeIsRefusedByName) {
  struct Case {
    std::string field;
    SamplingParams params;
  };
  const std::vector<Case> cases = {
      {"temperature", {.temperature = -0.1f}},
      {"temperature", {.temperature = NAN}},
      {"temperature", {.temperature = INFINITY}},
      {"top_p", {.top_p = 7}},
      {"top_p", {.top_p = 0}},
      {"top_p", {.top_p = NAN}},
      {"top_k", {.top_k = -2}},
      {"min_p", {.min_p = 1.5f}},
      {"min_p", {.min_p = NAN}},
      {"repetition_penalty", {.repetition_penalty = 0}},
      {"repetition_penalty", {.repetition_penalty = 11}},
      {"presence_penalty", {.presence_penalty = 2.5f}},
      {"frequency_penalty", {.frequency_penalty = -3}},
      {"logprobs", {.logprobs = 21}},
      {"logprobs", {.logprobs = -1}},
  };
  for (const Case& c : cases) {
    const absl::Status status = c.params.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.field));
  }
}

}  // namespace
}  // namespace swiftcache::engine::sample
