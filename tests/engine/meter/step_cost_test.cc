// SPDX-License-Identifier: Apache-2.0
#include "engine/meter/step_cost.h"

#include <gtest/gtest.h>

#include <random>

namespace swiftcache::engine::meter {
namespace {

StepShape RandomShape(std::mt19937& rng) {
  const int64_t decodes = rng() % 16, prefill = rng() % 3 == 0 ? 1 + rng() % 200 : 0;
  const int64_t tokens = decodes + prefill == 0 ? 1 : decodes;
  return {.prefill_tokens = prefill,
          .prefill_pairs = prefill * static_cast<int64_t>(rng() % 2000),
          .decode_tokens = tokens,
          .decode_pairs = tokens * static_cast<int64_t>(100 + rng() % 2000)};
}

double Prefill(const StepShape& s) { return 1e-4 * s.prefill_tokens + 2e-8 * s.prefill_pairs; }
double Decode(const StepShape& s) { return 5e-4 * s.decode_tokens + 1e-7 * s.decode_pairs; }
double Base() { return 2e-3; }

TEST(StepCostTest, FindsTheCostsThatMadeTheTimes) {
  StepCost cost;
  std::mt19937 rng(1);
  std::normal_distribution<double> noise(0, 0.05);
  for (int i = 0; i < 5000; ++i) {
    const StepShape shape = RandomShape(rng);
    cost.Fit(shape, (Base() + Prefill(shape) + Decode(shape)) * std::exp(noise(rng)));
  }
  for (int i = 0; i < 200; ++i) {
    const StepShape shape = RandomShape(rng);
    const auto parts = cost.Predict(shape);
    ASSERT_TRUE(parts.has_value());
    const double variable = Prefill(shape) + Decode(shape), all = Base() + variable;
    EXPECT_NEAR(parts->prefill + parts->decode, all, 0.03 * all);
    EXPECT_NEAR(parts->prefill, all * Prefill(shape) / variable, 0.05 * all);
  }
}

TEST(StepCostTest, SaysNothingOfAPhaseThatItHasNotSeen) {
  StepCost cost;
  const StepShape decode = {.decode_tokens = 4, .decode_pairs = 400},
                  mixed = {.prefill_tokens = 8, .prefill_pairs = 36, .decode_tokens = 4, .decode_pairs = 400};
  for (int64_t i = 0; i < StepCost::kMinSteps - 1; ++i) cost.Fit(decode, 0.01);
  EXPECT_FALSE(cost.Predict(decode).has_value());
  cost.Fit(decode, 0.01);
  ASSERT_TRUE(cost.Predict(decode).has_value());
  EXPECT_NEAR(cost.Predict(decode)->decode, 0.01, 1e-4);
  EXPECT_FALSE(cost.Predict(mixed).has_value());
}

TEST(StepCostTest, OneShapeOverAndOverIsNoTrouble) {
  StepCost cost;
  const StepShape shape = {.prefill_tokens = 64, .prefill_pairs = 64 * 32, .decode_tokens = 1, .decode_pairs = 50};
  for (int i = 0; i < 100000; ++i) cost.Fit(shape, 0.02);
  const auto parts = cost.Predict(shape);
  ASSERT_TRUE(parts.has_value());
  EXPECT_NEAR(parts->prefill + parts->decode, 0.02, 2e-4);
}

TEST(StepCostTest, AMachineThatBecomesSlowerIsLearntAnew) {
  StepCost cost;
  std::mt19937 rng(3);
  const auto run = [&](int steps, double speed) {
    for (int i = 0; i < steps; ++i) {
      const StepShape shape = RandomShape(rng);
      cost.Fit(shape, (Base() + Prefill(shape) + Decode(shape)) / speed);
    }
  };
  run(5000, 1);
  run(40000, 0.5);
  const StepShape shape = {.decode_tokens = 8, .decode_pairs = 8000};
  const double wanted = 2 * (Base() + Decode(shape));
  EXPECT_NEAR(cost.Predict(shape)->decode, wanted, 0.03 * wanted);
}

TEST(StepCostTest, AFewStepsThatTookForeverChangeLittle) {
  StepCost cost;
  std::mt19937 rng(4);
  for (int i = 0; i < 5000; ++i) {
    const StepShape shape = RandomShape(rng);
    cost.Fit(shape, (Base() + Prefill(shape) + Decode(shape)) * (i % 50 == 0 ? 20 : 1));
  }
  const StepShape shape = {.decode_tokens = 8, .decode_pairs = 8000};
  EXPECT_NEAR(cost.Predict(shape)->decode, Base() + Decode(shape), 0.03 * (Base() + Decode(shape)));
}

}  // namespace
}  // namespace swiftcache::engine::meter
