// SPDX-License-Identifier: Apache-2.0
// What policies of lending are worth over many loads: the table of tests/sim/README.md, and bounds on it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "tests/fakes/environment.h"
#include "tests/sim/worth/cluster.h"

namespace swiftcache::sim::worth {
namespace {

constexpr int64_t kBlocks = 1024;  // of each engine: 16,384 tokens

struct Scene {
  std::string name;
  std::vector<LoadSpec> loads;  // one an engine
  double oracle = 1.1;          // the default policy computes at most so many times again what the oracle does
  double seconds = 1800;
};

std::vector<Scene> Scenes() {
  const LoadSpec chat{.conversations = 8}, large{.conversations = 16};
  const auto on_off = [](LoadSpec spec, double on, double off, double shift) {
    spec.on_seconds = on, spec.off_seconds = off, spec.shift = shift;
    return spec;
  };
  LoadSpec zipf = large;
  zipf.zipf = 0.8, zipf.conversations = 20;
  const LoadSpec summary{.kind = LoadKind::kSummary, .per_second = 0.3};
  const LoadSpec bursts{.kind = LoadKind::kSummary, .per_second = 0.05, .burst_every = 180, .burst = 4};
  const LoadSpec quiet{.kind = LoadKind::kSummary, .per_second = 0.01};
  return {
      {"two chats, pauses of 6 s in turn", {on_off(large, 6, 6, 0), on_off(large, 6, 6, 6)}},
      {"two chats, pauses of 60 s in turn", {on_off(large, 60, 60, 0), on_off(large, 60, 60, 60)}},
      {"two chats, pauses of 5 min in turn", {on_off(large, 300, 300, 0), on_off(large, 300, 300, 300)}},
      {"a chat that pauses a minute, a large one", {on_off(chat, 60, 60, 0), large}},
      {"a chat beside summaries", {large, summary}},
      {"a chat beside two idle ones", {large, quiet, quiet}, 1.8},
      {"a chat beside bursts at one time", {large, bursts, bursts}, 1.8},
      {"four chats, Zipf", {zipf, zipf, on_off(chat, 60, 120, 0), on_off(chat, 60, 120, 60)}, 1.15},
  };
}

constexpr Side kSides[] = {Side::kAlone, Side::kPaper, Side::kDefault, Side::kOracle};
constexpr const char* kNames[] = {"alone", "paper", "default", "oracle"};
const uint64_t kFirstSeed = FromEnvironment("WORTH_FIRST_SEED").value_or(1);
const uint64_t kSeeds = FromEnvironment("WORTH_SEEDS").value_or(3);

// Of one scene under one policy, over all seeds; by engine where it is a vector.
struct Result {
  std::vector<int64_t> again, computed;
  std::vector<engine::kv::SharingWorth> worth;  // as they count it themselves
  std::vector<double> waking;                   // of all engines
  int64_t prompt_tokens = 0, found = 0, revoked_blocks = 0;
  double lent_block_seconds = 0;
  int64_t sum() const { return std::accumulate(again.begin(), again.end(), int64_t{0}); }
};

Result Play(const Scene& scene, Side side) {
  const size_t n = scene.loads.size();
  Result result{.again = std::vector<int64_t>(n), .computed = std::vector<int64_t>(n), .waking = {}};
  result.worth.resize(n);
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + kSeeds; ++seed) {
    std::vector<Load> loads;
    std::vector<Engine::Options> engines;
    for (size_t i = 0; i < n; ++i) {
      loads.push_back(MakeLoad(scene.loads[i], seed * 100 + i, scene.seconds));
      engines.push_back({.name = "engine" + std::to_string(i), .num_blocks = kBlocks});
    }
    Cluster cluster({.side = side}, engines, loads);
    cluster.Run(scene.seconds);
    result.revoked_blocks += cluster.revoked_blocks();
    for (size_t i = 0; i < n; ++i) {
      const Outcome& outcome = cluster.outcome(i);
      result.again[i] += outcome.again;
      result.worth[i] += cluster.worth(i);
      result.computed[i] += outcome.computed;
      result.prompt_tokens += outcome.prompt_tokens;
      result.found += outcome.found;
      result.waking.insert(result.waking.end(), outcome.waking.begin(), outcome.waking.end());
      result.lent_block_seconds += cluster.lent_block_seconds(i);
    }
  }
  return result;
}

// What the engines computed again that each would not have without leases.
int64_t LostTokens(const Result& result, const Result& alone) {
  int64_t lost = 0;
  for (size_t i = 0; i < result.again.size(); ++i) lost += std::max<int64_t>(0, result.again[i] - alone.again[i]);
  return lost;
}

// What an engine counts of sharing (kv::SharingWorth) against what it computes without: too much by next to nothing.
void ExpectTrueWorth(const Result& result, const Result& alone, size_t engine) {
  const double net = static_cast<double>(result.worth[engine].net_tokens());
  const double truly = static_cast<double>(alone.again[engine] - result.again[engine]);
  const double noise = 0.02 * static_cast<double>(std::max(alone.computed[engine], result.computed[engine]));
  EXPECT_LE(net, truly + noise) << "engine " << engine;
  EXPECT_GE(net, truly - 0.2 * std::abs(truly) - noise) << "engine " << engine;
}

double P99(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() * 99 / 100];
}

void Print(const Scene& scene, Side side, const Result& result, const Result& alone) {
  engine::kv::SharingWorth worth;
  for (const engine::kv::SharingWorth& engine : result.worth) worth += engine;
  const double seconds = scene.seconds * static_cast<double>(kSeeds), minutes = seconds / 60,
               engines = static_cast<double>(scene.loads.size());
  std::printf("| %-40s | %-7s | %4.1f | %9.0f | %7.0f | %5.1f | %5.1f | %6.0f | %6.0f | %6.0f | %5.2f |\n",
              side == Side::kAlone ? scene.name.c_str() : "", kNames[static_cast<int>(side)],
              100.0 * result.found / result.prompt_tokens, result.sum() / 1e3, LostTokens(result, alone) / 1e3,
              result.revoked_blocks / minutes, 100 * result.lent_block_seconds / (seconds * kBlocks * engines),
              worth.saved_tokens / 1e3, worth.again_for_loans_tokens / 1e3, worth.again_for_losses_tokens / 1e3,
              P99(result.waking));
}

TEST(WorthTest, TheDefaultPolicyIsWorthNearlyWhatAnOracleIsAndCostsNobodyMuch) {
  std::printf(
      "| load, seeds %lu to %lu | policy | hits %% | again, k | lost, k | revoked a minute | lent %% | saved, k | for "
      "loans, k | for losses, k | waking, s |\n",
      kFirstSeed, kFirstSeed + kSeeds - 1);
  std::printf("|---|---|---|---|---|---|---|---|---|---|---|\n");
  int64_t sums[4] = {};
  for (const Scene& scene : Scenes()) {
    std::vector<Result> results;
    for (const Side side : kSides) {
      results.push_back(Play(scene, side));
      Print(scene, side, results.back(), results.front());
      sums[static_cast<int>(side)] += results.back().sum();
      for (size_t i = 0; i < scene.loads.size(); ++i) ExpectTrueWorth(results.back(), results.front(), i);
    }
    const Result &alone = results[0], &ours = results[2];
    for (size_t i = 0; i < alone.again.size(); ++i) {
      EXPECT_LE(ours.again[i], 1.1 * alone.again[i] + 0.03 * ours.computed[i]) << scene.name << ", engine " << i;
    }
    EXPECT_LE(P99(ours.waking), 1.1 * P99(alone.waking)) << scene.name;
    EXPECT_LE(ours.sum(), scene.oracle * static_cast<double>(results[3].sum())) << scene.name;
  }
  for (int i = 0; i < 4; ++i) std::printf("all of them, %s: %.0f k again\n", kNames[i], sums[i] / 1e3);
  EXPECT_LE(sums[2], 1.1 * sums[3]);
  EXPECT_LE(sums[2], 0.8 * sums[0]);
}

}  // namespace
}  // namespace swiftcache::sim::worth
