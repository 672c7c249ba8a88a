// SPDX-License-Identifier: Apache-2.0
#include "engine/meter/interference_meter.h"

#include <algorithm>
#include <cmath>

namespace swiftcache::engine::meter {
namespace {

constexpr double kLeastShare = 0.05;  // of what was expected: what is left of a step after the other phase is taken off

// The part of a size's usual deviation that is taken off: taking all of it off would let the level and the deviations
// by size drift apart, one up and the other down.
constexpr float kSizePart = 0.9f;

}  // namespace

size_t InterferenceMeter::BinOf(int64_t tokens) {
  if (tokens <= 8) return static_cast<size_t>(tokens);
  return std::min(kBins - 1, 8 + static_cast<size_t>(2 * std::log2(static_cast<double>(tokens) / 8)));
}

void InterferenceMeter::Note(absl::Time now, const StepShape& shape, absl::Duration time, bool under_traffic,
                             double stands_for) {
  const double seconds = absl::ToDoubleSeconds(time);
  if (seconds <= 0 || shape.prefill_tokens + shape.decode_tokens <= 0) return;
  if (const std::optional<StepCost::PhaseSeconds> phases = cost_.Predict(shape)) {
    const bool prefills = phases->prefill >= phases->decode;
    const double own = prefills ? phases->prefill : phases->decode, other = prefills ? phases->decode : phases->prefill;
    const double slowness = under_traffic ? Of(prefills ? Phase::kDecode : Phase::kPrefill).slowness : 1;
    const double share = std::max(kLeastShare, (seconds - other * slowness) / own);
    const auto deviation = static_cast<float>(std::log(share));
    Track& track = Of(prefills ? Phase::kPrefill : Phase::kDecode);
    Samples& like = track.by_size[BinOf(prefills ? shape.prefill_tokens : shape.decode_tokens)];
    if (under_traffic) {
      Compare(track, like, now, deviation, own * share * stands_for);
    } else {
      NoteQuiet(track, like, now, deviation);
    }
  }
  if (!under_traffic) cost_.Fit(shape, seconds);
}

void InterferenceMeter::NoteQuiet(Track& track, Samples& like, absl::Time now, float deviation) {
  const std::optional<float> usual = like.Median(now, kMinQuietLike);
  const float level = track.level.Median(now, kMinQuiet).value_or(0);
  if (usual) track.level.Add(now, deviation - kSizePart * *usual);
  like.Add(now, deviation - level);
}

void InterferenceMeter::Compare(Track& track, const Samples& like, absl::Time now, float deviation, double seconds) {
  const std::optional<float> usual = like.Median(now, kMinQuietLike);
  const std::optional<float> level = track.level.Median(now, kMinQuiet);
  if (!usual || !level) return;
  const float slower = deviation - *usual - *level;
  track.comparisons.Add(now, slower);
  track.latest.Add(now, slower);
  track.traffic.actual += seconds;
  track.traffic.expected += seconds * std::exp(-*track.latest.Median(now, 1));
  if (--track.until_refresh > 0) return;
  track.until_refresh = kRefreshEvery;
  track.slowness = std::exp(track.comparisons.Median(now, kMinComparisons).value_or(0));
}

InterferenceMeter::Estimate InterferenceMeter::EstimateOf(const Samples& comparisons, absl::Time now) {
  Estimate estimate = {.comparisons = comparisons.Count(now)};
  if (const auto slower = comparisons.Median(now, kMinComparisons)) estimate.ratio = std::exp(-*slower);
  return estimate;
}

}  // namespace swiftcache::engine::meter
