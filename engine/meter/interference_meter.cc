// SPDX-License-Identifier: Apache-2.0
#include "engine/meter/interference_meter.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace swiftcache::engine::meter {
namespace {

constexpr absl::Duration kOld = absl::Minutes(10);
constexpr double kLeastShare = 0.05;  // of what was expected: what is left of a step after the other phase is taken off

// The part of a size's usual deviation that is taken off: taking all of it off would let the level and the deviations
// by size drift apart, one up and the other down.
constexpr float kSizePart = 0.9f;

}  // namespace

size_t InterferenceMeter::BinOf(int64_t tokens) {
  if (tokens <= 8) return static_cast<size_t>(tokens);
  return std::min(kBins - 1, 8 + static_cast<size_t>(2 * std::log2(static_cast<double>(tokens) / 8)));
}

void InterferenceMeter::Push(Samples& samples, const Sample& sample, size_t most) {
  samples.push_back(sample);
  if (samples.size() > most) samples.pop_front();
}

std::vector<float> InterferenceMeter::Recent(const Samples& samples, absl::Time now) {
  std::vector<float> recent;
  recent.reserve(samples.size());
  for (const Sample& sample : samples) {
    if (now - sample.when <= kOld) recent.push_back(sample.deviation);
  }
  return recent;
}

std::optional<float> InterferenceMeter::Median(const Samples& samples, absl::Time now, size_t least) {
  std::vector<float> recent = Recent(samples, now);
  if (recent.empty() || recent.size() < least) return std::nullopt;
  const auto middle = recent.begin() + recent.size() / 2;
  std::nth_element(recent.begin(), middle, recent.end());
  return *middle;
}

void InterferenceMeter::Note(absl::Time now, const StepShape& shape, absl::Duration time, bool under_traffic) {
  const double seconds = absl::ToDoubleSeconds(time);
  if (seconds <= 0 || shape.prefill_tokens + shape.decode_tokens <= 0) return;
  if (const std::optional<StepCost::PhaseSeconds> phases = cost_.Predict(shape)) {
    const bool prefills = phases->prefill >= phases->decode;
    const double own = prefills ? phases->prefill : phases->decode, other = prefills ? phases->decode : phases->prefill;
    const double slowness = under_traffic ? Of(prefills ? Phase::kDecode : Phase::kPrefill).slowness : 1;
    const double share = std::max(kLeastShare, (seconds - other * slowness) / own);
    const Sample sample = {.when = now, .deviation = static_cast<float>(std::log(share))};
    Track& track = Of(prefills ? Phase::kPrefill : Phase::kDecode);
    Samples& like = track.by_size[BinOf(prefills ? shape.prefill_tokens : shape.decode_tokens)];
    if (under_traffic) {
      Compare(track, like, sample, own);
    } else {
      NoteQuiet(track, like, sample);
    }
  }
  if (!under_traffic) cost_.Fit(shape, seconds);
}

void InterferenceMeter::NoteQuiet(Track& track, Samples& like, const Sample& sample) {
  const std::optional<float> usual = Median(like, sample.when, kMinQuietLike);
  const float level = Median(track.level, sample.when, kMinQuiet).value_or(0);
  if (usual) Push(track.level, {sample.when, sample.deviation - kSizePart * *usual}, kQuiet);
  Push(like, {sample.when, sample.deviation - level}, kQuiet);
}

void InterferenceMeter::Compare(Track& track, const Samples& like, const Sample& sample, double predicted_seconds) {
  const std::optional<float> usual = Median(like, sample.when, kMinQuietLike);
  const std::optional<float> level = Median(track.level, sample.when, kMinQuiet);
  if (!usual || !level) return;
  Push(track.comparisons, {sample.when, sample.deviation - *usual - *level}, kComparisons);
  track.uncharged_seconds += predicted_seconds * std::exp(*usual + *level);
  if (--track.until_refresh > 0) return;
  track.until_refresh = kRefreshEvery;
  Charge(track);
  track.slowness = std::exp(Median(track.comparisons, sample.when, kMinComparisons).value_or(0));
}

void InterferenceMeter::Charge(Track& track) {
  const size_t count = std::min(kCharged, track.comparisons.size());
  std::vector<float> last;
  last.reserve(count);
  for (size_t i = track.comparisons.size() - count; i < track.comparisons.size(); ++i) {
    last.push_back(track.comparisons[i].deviation);
  }
  const auto middle = last.begin() + static_cast<std::ptrdiff_t>(count / 2);
  std::nth_element(last.begin(), middle, last.end());
  track.step_seconds += track.uncharged_seconds * std::exp(*middle);
  track.expected_seconds += std::exchange(track.uncharged_seconds, 0);
}

InterferenceMeter::Estimate InterferenceMeter::At(Phase phase, absl::Time now) const {
  const Samples& comparisons = Of(phase).comparisons;
  Estimate estimate = {.step_seconds = Of(phase).step_seconds, .expected_seconds = Of(phase).expected_seconds};
  estimate.comparisons = static_cast<int64_t>(Recent(comparisons, now).size());
  if (const auto slower = Median(comparisons, now, kMinComparisons)) estimate.ratio = std::exp(-*slower);
  return estimate;
}

}  // namespace swiftcache::engine::meter
