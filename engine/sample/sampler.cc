// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "engine/sample/random.h"

namespace swiftcache::engine::sample {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

// NaN is impossible, +inf is the largest finite number.
float Clean(float logit) {
  if (std::isnan(logit)) return kImpossible;
  return std::min(logit, std::numeric_limits<float>::max());
}

// The lowest id of the largest logit; none where every logit is impossible. NaN loses every comparison.
std::optional<int32_t> ArgMax(std::span<const float> logits) {
  float best = kImpossible;
  std::optional<int32_t> id;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > best) {
      best = logits[i];
      id = static_cast<int32_t>(i);
    }
  }
  return id;
}

// More probable first, then the lower id.
struct Before {
  std::span<const float> logits;
  bool operator()(int32_t a, int32_t b) const {
    const float x = Clean(logits[a]), y = Clean(logits[b]);
    return x != y ? x > y : a < b;
  }
};

double Weight(float logit, double max, double temperature) { return std::exp((Clean(logit) - max) / temperature); }

double LogSumExp(std::span<const float> logits, double max) {
  double sum = 0;
  for (float logit : logits) sum += Weight(logit, max, 1.0);
  return max + std::log(sum);
}

// The `count` most probable ids, best first, by insertion into a short sorted list.
std::vector<int32_t> TopIds(std::span<const float> logits, size_t count) {
  std::vector<int32_t> top;
  if (count == 0) return top;
  const Before before{logits};
  for (size_t i = 0; i < logits.size(); ++i) {
    const int32_t id = static_cast<int32_t>(i);
    if (!(logits[i] > kImpossible) || (top.size() == count && !before(id, top.back()))) continue;
    if (top.size() == count) top.pop_back();
    top.insert(std::upper_bound(top.begin(), top.end(), id, before), id);
  }
  return top;
}

void AddLogprobs(std::span<const float> logits, int32_t alternatives, SampledToken& token) {
  const std::optional<int32_t> best = ArgMax(logits);
  if (!best) return;
  const double norm = LogSumExp(logits, Clean(logits[*best]));
  const auto logprob = [&](int32_t id) { return static_cast<float>(Clean(logits[id]) - norm); };
  token.logprob = logprob(token.token_id);
  for (int32_t id : TopIds(logits, alternatives)) token.top.emplace_back(id, logprob(id));
}

}  // namespace

absl::StatusOr<SampledToken> Sampler::Sample(std::span<const float> logits, const SamplingState& state,
                                             int64_t position) {
  const std::span<const float> adjusted = Penalised(logits, state);
  const std::optional<int32_t> best = ArgMax(adjusted);
  if (!best) {
    return absl::InternalError(
        absl::StrCat("all ", logits.size(), " logits at position ", position,
                     " are NaN or -inf; want at least one number: the model's weights are broken"));
  }
  const SamplingParams& params = state.params();
  SampledToken token{.token_id = *best};
  if (params.temperature > 0) {
    const double uniform = UniformAt({.seed = params.seed, .continuation = state.continuation(), .position = position});
    token.token_id = Draw(adjusted, params, Clean(adjusted[*best]), uniform);
  }
  if (params.logprobs) AddLogprobs(logits, *params.logprobs, token);
  return token;
}

std::span<const float> Sampler::Penalised(std::span<const float> logits, const SamplingState& state) {
  if (!state.has_penalties()) return logits;
  penalised_.assign(logits.begin(), logits.end());
  for (const SeenToken& seen : state.seen()) {
    if (seen.id < 0 || seen.id >= static_cast<int64_t>(logits.size())) continue;
    penalised_[seen.id] = PenalisedLogit(logits[seen.id], seen, state.params());
  }
  return penalised_;
}

// Inverts the cumulative distribution over the candidates: by descending probability where they were cut, else by id.
int32_t Sampler::Draw(std::span<const float> logits, const SamplingParams& params, double max, double uniform) {
  CollectCandidates(logits, max + params.temperature * std::log(static_cast<double>(params.min_p)));
  if (params.top_k > 0) KeepTopK(logits, params.top_k);
  if (params.top_p < 1) KeepTopP(logits, params, max);
  weights_.clear();
  double total = 0;
  for (int32_t id : candidates_) total += weights_.emplace_back(Weight(logits[id], max, params.temperature));
  const double target = uniform * total;
  double cumulative = 0;
  std::optional<int32_t> last;  // rounding may leave target == cumulative at the end
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (weights_[i] == 0) continue;
    cumulative += weights_[i];
    last = candidates_[i];
    if (cumulative > target) break;
  }
  return *last;  // the largest logit has weight 1
}

// min_p = 0 makes the floor -inf.
void Sampler::CollectCandidates(std::span<const float> logits, double floor) {
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > kImpossible && logits[i] >= floor) candidates_.push_back(static_cast<int32_t>(i));
  }
}

void Sampler::KeepTopK(std::span<const float> logits, int64_t k) {
  const Before before{logits};
  if (k < static_cast<int64_t>(candidates_.size())) {
    std::nth_element(candidates_.begin(), candidates_.begin() + k, candidates_.end(), before);
    candidates_.resize(k);
  }
  std::sort(candidates_.begin(), candidates_.end(), before);
}

// The shortest run of most probable candidates that holds at least top_p of their probability. Sorts only as far as
// that run reaches, in growing pieces.
void Sampler::KeepTopP(std::span<const float> logits, const SamplingParams& params, double max) {
  const Before before{logits};
  double total = 0;
  for (int32_t id : candidates_) total += Weight(logits[id], max, params.temperature);
  const double wanted = params.top_p * total;
  double cumulative = 0;
  size_t sorted = 0;
  for (size_t piece = 64; sorted < candidates_.size(); piece *= 4) {
    const size_t end = std::min(sorted + piece, candidates_.size());
    const auto begin = candidates_.begin();
    if (end < candidates_.size()) std::nth_element(begin + sorted, begin + end, candidates_.end(), before);
    std::sort(begin + sorted, begin + end, before);
    for (; sorted < end; ++sorted) {
      if (cumulative >= wanted) return candidates_.resize(sorted);
      cumulative += Weight(logits[candidates_[sorted]], max, params.temperature);
    }
  }
}

}  // namespace swiftcache::engine::sample
