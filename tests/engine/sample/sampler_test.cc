// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "engine/sample/random.h"

namespace swiftcache::engine::sample {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// The oracle: everything sorted, everything in double, each rule a pass of its own.
int32_t NaiveDraw(std::vector<double> logits, const SamplingParams& params, double uniform) {
  std::vector<std::pair<double, int32_t>> order;
  for (size_t i = 0; i < logits.size(); ++i) order.emplace_back(-logits[i] / params.temperature, i);
  const bool sorted = params.top_k > 0 || params.top_p < 1;
  const double best = std::min_element(order.begin(), order.end())->first;
  if (sorted) std::sort(order.begin(), order.end());
  std::erase_if(order, [&](auto& x) { return std::exp(best - x.first) < params.min_p; });
  if (params.top_k > 0 && order.size() > static_cast<size_t>(params.top_k)) order.resize(params.top_k);
  double total = 0;
  for (auto& x : order) total += std::exp(best - x.first);
  double cumulative = 0;
  if (params.top_p < 1) {
    size_t kept = 0;
    while (kept < order.size() && cumulative < params.top_p * total) cumulative += std::exp(best - order[kept++].first);
    order.resize(kept);
  } else {
    cumulative = total;
  }
  double target = uniform * cumulative;
  for (auto& x : order) {
    target -= std::exp(best - x.first);
    if (target < 0) return x.second;
  }
  return order.back().second;
}

std::vector<double> NaivePenalties(const std::vector<float>& logits, const SamplingParams& params,
                                   const std::vector<int32_t>& prompt, const std::vector<int32_t>& output) {
  std::vector<double> result(logits.begin(), logits.end());
  for (size_t id = 0; id < logits.size(); ++id) {
    const auto in_prompt = std::count(prompt.begin(), prompt.end(), static_cast<int32_t>(id));
    const auto in_output = std::count(output.begin(), output.end(), static_cast<int32_t>(id));
    if (in_prompt + in_output > 0) {
      result[id] = result[id] > 0 ? result[id] / params.repetition_penalty : result[id] * params.repetition_penalty;
    }
    if (in_output > 0) result[id] -= params.frequency_penalty * in_output + params.presence_penalty;
  }
  return result;
}

std::vector<float> RandomLogits(std::mt19937& rng, size_t vocab, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(vocab);
  for (float& x : logits) x = normal(rng);
  return logits;
}

int32_t SampleId(const std::vector<float>& logits, const SamplingParams& params, int64_t position = 0) {
  Sampler sampler;
  auto token = sampler.Sample(logits, SamplingState(params, 0, {}), position);
  EXPECT_TRUE(token.ok()) << token.status();
  return token.ok() ? token->token_id : -1;
}

TEST(SamplerTest, GreedyTakesTheLowestIdOfATie) {
  EXPECT_EQ(SampleId({1, 5, 3, 5, 5}, {.temperature = 0}), 1);
  EXPECT_EQ(SampleId({-7}, {.temperature = 0}), 0);
}

TEST(SamplerTest, DrawsWhatTheNaiveOracleDraws) {
  std::mt19937 rng(20);
  Sampler sampler;
  const std::vector<float> top_ps = {1.0f, 0.95f, 0.5f, 0.01f}, min_ps = {0, 0.05f, 0.9f},
                           temperatures = {0.3f, 1, 2.5f};
  const std::vector<int32_t> top_ks = {0, 1, 5, 40, 100000};
  int compared = 0;
  for (int round = 0; round < 12; ++round) {
    const std::vector<float> logits = RandomLogits(rng, 700, 3);
    const std::vector<double> wide(logits.begin(), logits.end());
    for (float top_p : top_ps) {
      for (float min_p : min_ps) {
        for (int32_t top_k : top_ks) {
          for (float temperature : temperatures) {
            SamplingParams params{.temperature = temperature, .top_p = top_p, .top_k = top_k, .min_p = min_p};
            params.seed = rng();
            const double u = UniformAt({.seed = params.seed, .continuation = 3, .position = round});
            const auto token = sampler.Sample(logits, SamplingState(params, 3, {}), round);
            ASSERT_TRUE(token.ok());
            ASSERT_EQ(token->token_id, NaiveDraw(wide, params, u)) << top_p << " " << min_p << " " << top_k;
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_EQ(compared, 12 * 180);
}

TEST(SamplerTest, PenaltiesAreThoseOfTheOracle) {
  std::mt19937 rng(21);
  Sampler sampler;
  for (int round = 0; round < 200; ++round) {
    const std::vector<float> logits = RandomLogits(rng, 50, 2);
    SamplingParams params{.temperature = round % 2 ? 0.8f : 0.0f, .seed = rng()};
    params.repetition_penalty = 1.0f + (rng() % 10) * 0.1f;
    params.presence_penalty = static_cast<int>(rng() % 5) * 0.5f - 1;
    params.frequency_penalty = static_cast<int>(rng() % 5) * 0.5f - 1;
    std::vector<int32_t> prompt, output;
    for (int i = 0; i < 10; ++i) prompt.push_back(rng() % 50);
    SamplingState state(params, 0, prompt);
    for (int i = 0; i < 15; ++i) state.Observe(output.emplace_back(rng() % 20));
    const std::vector<double> expected = NaivePenalties(logits, params, prompt, output);
    const auto token = sampler.Sample(logits, state, round);
    ASSERT_TRUE(token.ok());
    if (params.temperature == 0) {
      EXPECT_NEAR(expected[token->token_id], *std::max_element(expected.begin(), expected.end()), 1e-5);
    } else {
      const double u = UniformAt({.seed = params.seed, .continuation = 0, .position = round});
      EXPECT_EQ(token->token_id, NaiveDraw(expected, params, u));
    }
  }
}

TEST(SamplerTest, FrequenciesFollowTheDistribution) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  std::map<int32_t, int> counts;
  for (int i = 0; i < 20000; ++i) ++counts[SampleId(logits, {.seed = 5}, i)];
  EXPECT_NEAR(counts[0] / 20000.0, 0.5, 0.015);
  EXPECT_NEAR(counts[1] / 20000.0, 0.3, 0.015);
  EXPECT_NEAR(counts[2] / 20000.0, 0.2, 0.015);
}

TEST(SamplerTest, TheSameSeedPositionAndContinuationGiveTheSameToken) {
  std::mt19937 rng(22);
  const std::vector<float> logits = RandomLogits(rng, 1000, 1);
  const SamplingParams params{.top_p = 0.9f, .seed = 77};
  Sampler fresh, used;
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(used.Sample(RandomLogits(rng, 300, 1), SamplingState({}, 0, {}), i).ok());
  int different = 0;
  for (int i = 0; i < 50; ++i) {
    const SamplingState first(params, 0, {}), second(params, 1, {});
    const int32_t id = fresh.Sample(logits, first, i)->token_id;
    EXPECT_EQ(id, used.Sample(logits, first, i)->token_id);
    different += id != fresh.Sample(logits, second, i)->token_id;
  }
  EXPECT_GT(different, 25);
}

TEST(SamplerTest, LogprobsAreTheLogSoftmaxOfTheUnmodifiedLogits) {
  std::mt19937 rng(23);
  std::vector<float> logits = RandomLogits(rng, 5000, 4);
  logits[17] = logits[4000] = 30;  // a tie at the top
  SamplingParams params{.temperature = 0.5f, .top_k = 3, .seed = 1, .repetition_penalty = 3};
  params.logprobs = 20;
  const std::vector<int32_t> prompt = {17};
  Sampler sampler;
  const auto token = sampler.Sample(logits, SamplingState(params, 0, prompt), 1);
  ASSERT_TRUE(token.ok());
  double sum = 0;
  for (float x : logits) sum += std::exp(double{x} - 30);
  EXPECT_NEAR(token->logprob, logits[token->token_id] - 30 - std::log(sum), 1e-6);
  ASSERT_EQ(token->top.size(), 20u);
  EXPECT_EQ(token->top[0].first, 17);
  EXPECT_EQ(token->top[1].first, 4000);
  std::vector<float> sorted = logits;
  std::sort(sorted.rbegin(), sorted.rend());
  for (int i = 0; i < 20; ++i) EXPECT_NEAR(token->top[i].second, sorted[i] - 30 - std::log(sum), 1e-5) << i;
}

TEST(SamplerTest, LogprobsOfZeroAlternativesHaveTheChosenTokenOnly) {
  SamplingParams params{.temperature = 0};
  params.logprobs = 0;
  Sampler sampler;
  const auto token = sampler.Sample(std::vector<float>{0, 0}, SamplingState(params, 0, {}), 0);
  ASSERT_TRUE(token.ok());
  EXPECT_FLOAT_EQ(token->logprob, std::log(0.5f));
  EXPECT_TRUE(token->top.empty());
}

TEST(SamplerTest, NanIsNeverChosenAndNeverCrashes) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (float temperature : {0.0f, 1.0f}) {
    for (float top_p : {0.5f, 1.0f}) {
      SamplingParams params{.temperature = temperature, .top_p = top_p, .top_k = 2};
      params.logprobs = 3;
      params.repetition_penalty = 1.5f;
      const std::vector<int32_t> prompt = {0, 1, 99, -5};
      Sampler sampler;
      const auto token =
          sampler.Sample(std::vector<float>{nan, -4, nan, -INFINITY}, SamplingState(params, 0, prompt), 0);
      ASSERT_TRUE(token.ok());
      EXPECT_EQ(token->token_id, 1);
      EXPECT_THAT(token->top, ElementsAre(Pair(1, 0.0f)));
    }
  }
}

TEST(SamplerTest, RowsWithoutANumberAreAnInternalError) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Sampler sampler;
  for (const auto& row : {std::vector<float>{nan, nan}, std::vector<float>{-INFINITY}, std::vector<float>{}}) {
    EXPECT_EQ(sampler.Sample(row, SamplingState({}, 0, {}), 0).status().code(), absl::StatusCode::kInternal);
  }
}

TEST(SamplerTest, InfiniteLogitsAndTinyTemperaturesStayFinite) {
  SamplingParams params{.temperature = 1e-30f, .top_p = 0.9f};
  params.logprobs = 1;
  Sampler sampler;
  const auto token = sampler.Sample(std::vector<float>{3, INFINITY, 1e38f}, SamplingState(params, 0, {}), 0);
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(token->token_id, 1);
  EXPECT_EQ(token->logprob, 0);
}

}  // namespace
}  // namespace swiftcache::engine::sample
