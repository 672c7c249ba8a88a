// SPDX-License-Identifier: Apache-2.0
#include "engine/meter/step_cost.h"

#include <algorithm>
#include <cmath>

namespace swiftcache::engine::meter {
namespace {

constexpr double kMemory = 1 - 1.0 / 4096;  // weight of the past, a step
constexpr int64_t kSolveEvery = 16;         // steps
constexpr double kFarOff = 0.3;             // relative error from which a step counts less
constexpr double kRidge = 1e-4;             // of the diagonal: terms that always go together share their cost

}  // namespace

StepCost::Row StepCost::Terms(const StepShape& shape) {
  return {1, static_cast<double>(shape.prefill_tokens), static_cast<double>(shape.prefill_pairs),
          static_cast<double>(shape.decode_tokens), static_cast<double>(shape.decode_pairs)};
}

double StepCost::At(const Row& terms) const {
  double seconds = 0;
  for (int i = 0; i < kTerms; ++i) seconds += line_[i] * terms[i];
  return seconds;
}

void StepCost::Fit(const StepShape& shape, double seconds) {
  const Row terms = Terms(shape);
  double weight = 1;
  if (steps_ >= kMinSteps) weight = std::min(1.0, kFarOff / std::max(kFarOff, std::abs(1 - At(terms) / seconds)));
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j <= i; ++j) {
      squares_[i][j] = squares_[i][j] * kMemory + weight * terms[i] * terms[j] / (seconds * seconds);
    }
    sums_[i] = sums_[i] * kMemory + weight * terms[i] / seconds;
  }
  prefills_ += shape.prefill_tokens > 0;
  decodes_ += shape.decode_tokens > 0;
  if (++steps_ % kSolveEvery == 0) Solve();
}

// By Cholesky; a term that was never seen costs nothing.
void StepCost::Solve() {
  std::array<Row, kTerms> root = {};
  Row half = {};
  for (int i = 0; i < kTerms; ++i) {
    if (squares_[i][i] == 0) continue;
    for (int j = 0; j <= i; ++j) {
      if (root[j][j] == 0 && j < i) continue;
      double rest = squares_[i][j] * (i == j ? 1 + kRidge : 1);
      for (int k = 0; k < j; ++k) rest -= root[i][k] * root[j][k];
      root[i][j] = i == j ? std::sqrt(std::max(rest, kRidge * kRidge * squares_[i][i])) : rest / root[j][j];
    }
    half[i] = sums_[i];
    for (int k = 0; k < i; ++k) half[i] -= root[i][k] * half[k];
    half[i] /= root[i][i];
  }
  for (int i = kTerms - 1; i >= 0; --i) {
    line_[i] = half[i];
    for (int k = i + 1; k < kTerms; ++k) line_[i] -= root[k][i] * line_[k];
    line_[i] = root[i][i] == 0 ? 0 : line_[i] / root[i][i];
  }
}

std::optional<StepCost::PhaseSeconds> StepCost::Predict(const StepShape& shape) const {
  if (shape.prefill_tokens > 0 && prefills_ < kMinSteps) return std::nullopt;
  if (shape.decode_tokens > 0 && decodes_ < kMinSteps) return std::nullopt;
  const Row terms = Terms(shape);
  const double all = At(terms);
  const double prefill = std::max(0.0, line_[1] * terms[1] + line_[2] * terms[2]);
  const double decode = std::max(0.0, line_[3] * terms[3] + line_[4] * terms[4]);
  if (all <= 0) return std::nullopt;
  if (shape.prefill_tokens == 0) return PhaseSeconds{0, all};
  if (shape.decode_tokens == 0) return PhaseSeconds{all, 0};
  if (prefill + decode <= 0) return std::nullopt;
  return PhaseSeconds{all * prefill / (prefill + decode), all * decode / (prefill + decode)};
}

}  // namespace swiftcache::engine::meter
