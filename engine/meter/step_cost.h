// SPDX-License-Identifier: Apache-2.0
// What a step costs by what it computes: a line fitted online to the steps that went by.
//
//   StepCost cost;
//   cost.Fit({.decode_tokens = 8, .decode_pairs = 4000}, 0.012);
//   if (auto parts = cost.Predict(shape)) seconds = parts->prefill + parts->decode;
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace swiftcache::engine::meter {

/// What a step computes. A pair is a token of it and a token that it attends to. Units: as named.
struct StepShape {
  int64_t prefill_tokens = 0, prefill_pairs = 0;
  int64_t decode_tokens = 0, decode_pairs = 0;
};

/// seconds = base + a * prefill_tokens + b * prefill_pairs + c * decode_tokens + d * decode_pairs, by least squares of
/// the relative error, with a memory of some thousand steps; steps far off the line (a page fault, another process)
/// count little. Thread-safety: none. Ownership: a value. Errors: none. Units: seconds. Cost: about 100 ns a call, a
/// microsecond each 16 calls.
class StepCost {
 public:
  static constexpr int64_t kMinSteps = 64;  // of each phase that a prediction is about

  struct Parts {
    double prefill = 0, decode = 0;  // the base is shared in proportion
  };
  /// REQUIRES: seconds > 0.
  void Fit(const StepShape& shape, double seconds);
  /// Nothing: too few such steps were seen, or what was seen makes no sense of this one.
  std::optional<Parts> Predict(const StepShape& shape) const;

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
