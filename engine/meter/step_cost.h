// SPDX-License-Identifier: Apache-2.0
// Predicts the time of a step from what it computes: a linear model, fitted online to the steps so far.
//
//   StepCost cost;
//   cost.Fit({.decode_tokens = 8, .decode_pairs = 4000}, 0.012);
//   if (auto seconds = cost.Predict(shape)) total = seconds->prefill + seconds->decode;
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace swiftcache::engine::meter {

/// What a step computes. A pair is a token of the step and a token that it attends to. Units: as named.
struct StepShape {
  int64_t prefill_tokens = 0, prefill_pairs = 0;
  int64_t decode_tokens = 0, decode_pairs = 0;
};

/// seconds = base + a * prefill_tokens + b * prefill_pairs + c * decode_tokens + d * decode_pairs, by least squares of
/// the relative error over the last few thousand steps; outliers (a page fault, another process) count little.
/// Thread-safety: none. Ownership: a value. Errors: none. Units: seconds. Cost: about 100 ns per call, a microsecond
/// every 16 calls.
class StepCost {
 public:
  static constexpr int64_t kMinSteps = 64;  // of each phase that a prediction is about

  struct PhaseSeconds {
    double prefill = 0, decode = 0;  // the base is shared in proportion
  };
  /// REQUIRES: seconds > 0.
  void Fit(const StepShape& shape, double seconds);
  /// Nothing if too few such steps were seen, or if the prediction for this one would not be positive.
  std::optional<PhaseSeconds> Predict(const StepShape& shape) const;

 private:
  static constexpr int kTerms = 5;
  using Row = std::array<double, kTerms>;
  static Row Terms(const StepShape& shape);
  double At(const Row& terms) const;
  void Solve();

  std::array<Row, kTerms> squares_ = {};  // sum of terms * terms^T / seconds^2; lower triangle
  Row sums_ = {};                         // sum of terms / seconds
  Row line_ = {};
  int64_t steps_ = 0, prefills_ = 0, decodes_ = 0;
};

}  // namespace swiftcache::engine::meter
