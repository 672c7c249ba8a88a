// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <random>

#include "tests/engine/backend/cpu/backend_test_util.h"

namespace swiftcache::engine::backend::cpu {
namespace {

using sample::SamplingParams;
using sample::SamplingState;
using ::testing::ElementsAre;
using ::testing::Pair;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The oracle: everything sorted, everything in double, each rule a pass of its own.
int32_t NaiveDraw(const std::vector<float>& logits, const SamplingParams& params, double uniform) {
  std::vector<std::pair<double, int32_t>> order;  // how much worse than nothing, id
  for (size_t i = 0; i < logits.size(); ++i) {
    const double clean = std::min(logits[i], std::numeric_limits<float>::max());
    if (!std::isnan(logits[i]) && clean > -INFINITY) order.emplace_back(-clean / params.temperature, i);
  }
  const double best = std::min_element(order.begin(), order.end())->first;
  const bool ranked = params.top_k > 0 || params.top_p < 1;
  if (ranked) std::sort(order.begin(), order.end());
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

std::optional<int32_t> NaiveGreedy(const std::vector<float>& logits) {
  std::optional<int32_t> best;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > (best ? logits[*best] : -INFINITY)) best = static_cast<int32_t>(i);
  }
  return best;
}

std::vector<float> NaivePenalties(std::vector<float> logits, const SamplingParams& params,
                                  const std::vector<int32_t>& prompt, const std::vector<int32_t>& output) {
  for (size_t id = 0; id < logits.size(); ++id) {
    const auto in_prompt = std::count(prompt.begin(), prompt.end(), static_cast<int32_t>(id));
    const auto in_output = std::count(output.begin(), output.end(), static_cast<int32_t>(id));
    float& x = logits[id];
    if (in_prompt + in_output > 0) x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
    if (in_output > 0) x -= params.frequency_penalty * in_output + params.presence_penalty;
  }
  return logits;
}

double NaiveLogSumExp(const std::vector<float>& logits) {
  double max = -INFINITY, sum = 0;
  for (float x : logits) max = std::max<double>(max, std::isnan(x) ? -INFINITY : x);
  for (float x : logits) sum += std::isnan(x) ? 0 : std::exp(x - max);
  return max + std::log(sum);
}

// Every ISA of this machine, with one thread and with two; the first is the plainest.
struct Setting {
  Isa isa;
  int threads;
  std::unique_ptr<Backend> backend;
};

const std::vector<Setting>& Settings() {
  static const auto* settings = [] {
    auto* all = new std::vector<Setting>;
    for (const Isa isa : kAllIsas) {
      if (BestIsa(isa) != isa) continue;
      for (int threads : {1, 2}) all->push_back({isa, threads, MakeBackend({.threads = threads, .max_isa = isa})});
    }
    return all;
  }();
  return *settings;
}

Backend& AnyBackend() { return *Settings().back().backend; }

std::vector<Sampled> SampleRows(Backend& backend, const std::vector<std::vector<float>>& logits,
                                std::span<const SampleRow> rows) {
  std::vector<float> flat;
  for (const auto& row : logits) flat.insert(flat.end(), row.begin(), row.end());
  const auto buffer = MakeBuffer(backend, flat, logits[0].size());
  std::vector<Sampled> out(rows.size());
  const absl::Status status = backend.Sample(*buffer, rows, out);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(SameBits(Values(*buffer, buffer->rows()), flat)) << "sampling has changed the logits";
  return out;
}

Sampled SampleOne(Backend& backend, const std::vector<float>& logits, const SamplingState& state,
                  int64_t position = 0) {
  const SampleRow row = SampleRowOf(0, state, position);
  return std::move(SampleRows(backend, {logits}, {&row, 1})[0]);
}

int32_t SampleId(const std::vector<float>& logits, const SamplingParams& params, int64_t position = 0) {
  const Sampled token = SampleOne(AnyBackend(), logits, SamplingState(params, 0, {}), position);
  EXPECT_TRUE(token.ok()) << token.status();
  return token.ok() ? token->token_id : -1;
}

bool Same(const Sampled& a, const Sampled& b) {
  if (!a.ok() || !b.ok()) return a.status() == b.status();
  return a->token_id == b->token_id && SameBits({&a->logprob, 1}, {&b->logprob, 1}) && a->top == b->top;
}

TEST(SamplingTest, GreedyTakesTheLowestIdOfATie) {
  EXPECT_EQ(SampleId({1, 5, 3, 5, 5}, {.temperature = 0}), 1);
  EXPECT_EQ(SampleId({-7}, {.temperature = 0}), 0);
  EXPECT_EQ(SampleId({-0.0f, 0.0f}, {.temperature = 0}), 0);
  for (const Setting& setting : Settings()) {
    std::vector<float> logits(9001, -3.0f);
    logits[8999] = logits[4101] = logits[5000] = 2;
    EXPECT_EQ(SampleOne(*setting.backend, logits, SamplingState({.temperature = 0}, 0, {}))->token_id, 4101);
  }
}

TEST(SamplingTest, DrawsWhatTheNaiveOracleDraws) {
  const std::vector<float> top_ps = {1.0f, 0.95f, 0.5f, 0.01f}, min_ps = {0, 0.05f, 0.9f},
                           temperatures = {0.3f, 1, 2.5f};
  const std::vector<int32_t> top_ks = {0, 1, 5, 40, 100000};
  std::mt19937 rng(20);
  for (int round = 0; round < 12; ++round) {
    const std::vector<float> logits = RandomVector(700, rng(), 3);
    std::vector<SampleRow> rows;
    std::vector<int32_t> expected;
    for (float top_p : top_ps) {
      for (float min_p : min_ps) {
        for (int32_t top_k : top_ks) {
          for (float temperature : temperatures) {
            const SamplingParams params{
                .temperature = temperature, .top_p = top_p, .top_k = top_k, .min_p = min_p, .seed = rng()};
            rows.push_back(SampleRowOf(0, SamplingState(params, 3, {}), round));
            expected.push_back(NaiveDraw(logits, params, sample::UniformAt({params.seed, 3, round})));
          }
        }
      }
    }
    for (const Setting& setting : Settings()) {
      const std::vector<Sampled> out = SampleRows(*setting.backend, {logits}, rows);
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_EQ(out[i]->token_id, expected[i]) << IsaName(setting.isa) << " " << rows[i].params.top_p << " "
                                                 << rows[i].params.min_p << " " << rows[i].params.top_k;
      }
    }
  }
}

TEST(SamplingTest, MinPKeepsALogitJustAtItsFloorAndNoneJustBelow) {
  std::mt19937 rng(25);
  for (int round = 0; round < 20; ++round) {
    const SamplingParams params{.temperature = 0.5f + rng() % 100 / 64.0f, .min_p = 0.8f + rng() % 100 * 1e-3f};
    const double floor = 4 + params.temperature * std::log(static_cast<double>(params.min_p));
    const auto nearest = static_cast<float>(floor);
    const std::vector<float> logits = {4, std::nextafter(nearest, 0.0f), nearest, std::nextafter(nearest, 5.0f)};
    std::map<int32_t, int> counts;
    for (int i = 0; i < 100; ++i) ++counts[SampleId(logits, params, i)];
    for (int32_t id = 0; id < 4; ++id) EXPECT_EQ(counts.count(id), logits[id] >= floor) << round << " " << id;
  }
}

// A call of random rows over one vocabulary, with everything that a row may have.
class RandomCall {
 public:
  explicit RandomCall(uint32_t seed) : rng_(seed) {
    constexpr int64_t kVocabs[] = {1, 2, 31, 33, 50, 255, 257, 1000, 4095, 4097, 9001};
    const int64_t vocab = kVocabs[rng_() % std::size(kVocabs)];
    for (int r = 0; r < 4; ++r) logits.push_back(RandomLogits(vocab));
    states_.reserve(6);
    for (int r = 0; r < 6; ++r) AddRow(r % 4, vocab);
  }
  std::vector<std::vector<float>> logits;
  std::vector<SampleRow> rows;
  std::vector<std::optional<int32_t>> expected;

 private:
  bool Often() { return rng_() % 3 == 0; }

  std::vector<float> RandomLogits(int64_t vocab) {
    constexpr float kSpreads[] = {0.0f, 1e-3f, 1.0f, 4.0f, 30.0f};
    std::vector<float> x = RandomVector(vocab, rng_(), kSpreads[rng_() % std::size(kSpreads)]);
    if (Often()) {
      for (float& v : x) v = std::round(v * 2) / 2;  // ties
    }
    for (float strange : {kNan, -INFINITY, INFINITY}) {
      for (int i = Often() ? rng_() % (vocab + 1) : 0; i > 0; --i) x[rng_() % vocab] = strange;
    }
    if (rng_() % 10 == 0) std::fill(x.begin(), x.end(), kNan);
    return x;
  }

  void AddRow(int64_t logits_row, int64_t vocab) {
    constexpr float kTemperatures[] = {0, 0.1f, 0.7f, 1, 3}, kTopPs[] = {1, 1, 0.1f, 0.5f, 0.9f, 0.999f};
    constexpr int32_t kTopKs[] = {0, 0, -1, 1, 7, 40, 2000};
    SamplingParams params{.temperature = kTemperatures[rng_() % 5], .top_p = kTopPs[rng_() % 6]};
    params.top_k = kTopKs[rng_() % 7];
    params.min_p = Often() ? 0.1f : 0;
    params.seed = rng_();
    params.repetition_penalty = Often() ? 1.3f : 1;
    params.presence_penalty = Often() ? -0.5f : 0;
    params.frequency_penalty = Often() ? 0.25f : 0;
    if (Often()) params.logprobs = rng_() % 21;
    std::vector<int32_t> prompt, output;
    for (int i = rng_() % 30; i > 0; --i) prompt.push_back(static_cast<int32_t>(rng_() % (vocab + 2)) - 1);
    for (int i = rng_() % 30; i > 0; --i) output.push_back(rng_() % vocab);
    SamplingState& state = states_.emplace_back(params, logits_row, SeenIn(prompt, params));
    for (int32_t token : output) state.Observe(token);
    rows.push_back(SampleRowOf(logits_row, state, /*position=*/rng_()));
    const std::vector<float> adjusted = NaivePenalties(logits[logits_row], params, prompt, output);
    expected.push_back(NaiveGreedy(adjusted));
    if (expected.back() && params.temperature > 0) {
      expected.back() = NaiveDraw(adjusted, params, sample::UniformAt(rows.back().draw));
    }
  }

  std::mt19937 rng_;
  std::vector<SamplingState> states_;
};

TEST(SamplingTest, RandomRowsAreAsTheOracleSaysAndTheSameOnEveryIsaAndThreadCount) {
  int drawn = 0;
  for (uint32_t seed = 0; seed < 1500; ++seed) {
    const RandomCall call(seed);
    const std::vector<Sampled> first = SampleRows(*Settings()[0].backend, call.logits, call.rows);
    for (size_t r = 0; r < call.rows.size(); ++r) {
      ASSERT_EQ(first[r].ok(), call.expected[r].has_value()) << seed << " " << r;
      if (!first[r].ok()) continue;
      ASSERT_EQ(first[r]->token_id, *call.expected[r]) << seed << " " << r;
      drawn += call.rows[r].params.temperature > 0;
    }
    for (const Setting& setting : Settings()) {
      const std::vector<Sampled> out = SampleRows(*setting.backend, call.logits, call.rows);
      for (size_t r = 0; r < out.size(); ++r) {
        ASSERT_TRUE(Same(out[r], first[r])) << seed << " " << r << " " << IsaName(setting.isa) << setting.threads;
      }
    }
  }
  EXPECT_GT(drawn, 5000);
}

TEST(SamplingTest, ATokenDoesNotDependOnTheRowsBesideIt) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const RandomCall call(seed);
    const std::vector<Sampled> together = SampleRows(AnyBackend(), call.logits, call.rows);
    for (size_t r = 0; r < call.rows.size(); ++r) {
      EXPECT_TRUE(Same(SampleRows(AnyBackend(), call.logits, {&call.rows[r], 1})[0], together[r])) << seed << " " << r;
    }
  }
}

TEST(SamplingTest, FrequenciesFollowTheDistribution) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  std::map<int32_t, int> counts;
  for (int i = 0; i < 20000; ++i) ++counts[SampleId(logits, {.seed = 5}, i)];
  EXPECT_NEAR(counts[0] / 20000.0, 0.5, 0.015);
  EXPECT_NEAR(counts[1] / 20000.0, 0.3, 0.015);
  EXPECT_NEAR(counts[2] / 20000.0, 0.2, 0.015);
}

TEST(SamplingTest, SeedPositionAndContinuationAllChangeTheDraw) {
  const std::vector<float> logits = RandomVector(1000, 22);
  const auto draw = [&](uint64_t seed, int32_t continuation, int64_t position) {
    return SampleOne(AnyBackend(), logits, SamplingState({.top_p = 0.9f, .seed = seed}, continuation, {}), position)
        ->token_id;
  };
  int seeds = 0, continuations = 0, positions = 0;
  for (int i = 0; i < 50; ++i) {
    const int32_t id = draw(77, 0, i);
    EXPECT_EQ(id, draw(77, 0, i));
    seeds += id != draw(78, 0, i);
    continuations += id != draw(77, 1, i);
    positions += id != draw(77, 0, i + 50);
  }
  EXPECT_GT(seeds, 25);
  EXPECT_GT(continuations, 25);
  EXPECT_GT(positions, 25);
}

TEST(SamplingTest, LogprobsAreTheLogSoftmaxOfTheUnmodifiedLogits) {
  std::vector<float> logits = RandomVector(5000, 23, 4);
  logits[17] = logits[4000] = 30;  // a tie at the top
  SamplingParams params{.temperature = 0.5f, .top_k = 3, .seed = 1, .repetition_penalty = 3, .logprobs = 20};
  const std::vector<int32_t> prompt = {17};
  const Sampled token = SampleOne(AnyBackend(), logits, SamplingState(params, 0, SeenIn(prompt, params)), 1);
  const double norm = NaiveLogSumExp(logits);
  EXPECT_NEAR(token->logprob, logits[token->token_id] - norm, 1e-6);
  ASSERT_EQ(token->top.size(), 20u);
  EXPECT_EQ(token->top[0].first, 17);
  EXPECT_EQ(token->top[1].first, 4000);
  std::vector<float> sorted = logits;
  std::sort(sorted.rbegin(), sorted.rend());
  for (int i = 0; i < 20; ++i) EXPECT_NEAR(token->top[i].second, sorted[i] - norm, 2e-6) << i;
}

TEST(SamplingTest, LogprobsOfACertainTokenKeepTheirDigits) {
  std::vector<float> logits = RandomVector(20000, 24);
  for (float best : {12.0f, 20.0f, 30.0f}) {
    logits[5] = best;
    const Sampled token = SampleOne(AnyBackend(), logits, SamplingState({.temperature = 0, .logprobs = 0}, 0, {}));
    double rest = 0;
    for (size_t i = 0; i < logits.size(); ++i) rest += i == 5 ? 0 : std::exp(double{logits[i]} - best);
    EXPECT_NEAR(token->logprob / -std::log1p(rest), 1, 3e-6) << best;
    EXPECT_TRUE(token->top.empty());
  }
}

TEST(SamplingTest, NanIsNeverChosenAndNeverCrashes) {
  const std::vector<int32_t> prompt = {0, 1, 99, -5};
  for (float temperature : {0.0f, 1.0f}) {
    for (float top_p : {0.5f, 1.0f}) {
      SamplingParams params{.temperature = temperature, .top_p = top_p, .top_k = 2, .repetition_penalty = 1.5f};
      params.logprobs = 3;
      const Sampled token =
          SampleOne(AnyBackend(), {kNan, -4, kNan, -INFINITY}, SamplingState(params, 0, SeenIn(prompt, params)));
      ASSERT_TRUE(token.ok());
      EXPECT_EQ(token->token_id, 1);
      EXPECT_THAT(token->top, ElementsAre(Pair(1, 0.0f)));
    }
  }
}

TEST(SamplingTest, ARowWithoutANumberFailsAlone) {
  for (float temperature : {0.0f, 1.0f}) {
    const SamplingState state({.temperature = temperature, .logprobs = 1}, 0, {});
    const SampleRow rows[] = {SampleRowOf(0, state, 8), SampleRowOf(1, state, 9), SampleRowOf(2, state, 10)};
    const auto out = SampleRows(AnyBackend(), {{kNan, kNan}, {-INFINITY, 2}, {-INFINITY, kNan}}, rows);
    EXPECT_EQ(out[0].status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(out[0].status().message()), ::testing::HasSubstr("all 2 logits at position 8"));
    EXPECT_EQ(out[1]->token_id, 1);
    EXPECT_EQ(out[2].status().code(), absl::StatusCode::kInternal);
  }
}

TEST(SamplingTest, InfiniteLogitsAndExtremeTemperaturesStayFinite) {
  const std::vector<float> logits = {3, INFINITY, 1e38f, -1e38f};
  for (float temperature : {1e-45f, 1e-30f, 1.0f}) {
    for (float top_p : {0.9f, 1.0f}) {
      SamplingParams params{.temperature = temperature, .top_p = top_p, .logprobs = 1};
      const Sampled token = SampleOne(AnyBackend(), logits, SamplingState(params, 0, {}));
      EXPECT_EQ(token->token_id, 1);
      EXPECT_EQ(token->logprob, 0);
    }
  }
  std::map<int32_t, int> counts;  // nothing but the number of tokens is left of the distribution
  for (int i = 0; i < 400; ++i) ++counts[SampleId({1, 2, 3, 4}, {.temperature = 3e38f, .top_p = 0.99f}, i)];
  EXPECT_EQ(counts.size(), 4u);
}

TEST(SamplingTest, NoRowsAreNoWork) { EXPECT_TRUE(SampleRows(AnyBackend(), {{1, 2}}, {}).empty()); }

}  // namespace
}  // namespace swiftcache::engine::backend::cpu
