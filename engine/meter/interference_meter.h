// SPDX-License-Identifier: Apache-2.0
// How much borrowers slow a donor down, measured online: the latency without interference divided by that under
// interference (SwiftCache, section 5), for prefill and for decode. 1.0: none; 0.9: under lease traffic steps take 11 %
// longer.
//
//   InterferenceMeter meter;
//   meter.Note(now, {.decode_tokens = 8, .decode_pairs = 4000}, step_time, /*under_traffic=*/stored_meanwhile);
//   InterferenceMeter::Estimate decode = meter.At(Phase::kDecode, now);   // ratio: nothing, until it has data
//
// The estimator. (1) A linear model (StepCost) predicts a step's time from what it computes. It is fitted to quiet
// steps, those without lease traffic; it makes steps of different shapes comparable, and splits a mixed step into
// prefill and decode. A step counts for the phase that costs it the most: the predicted time of the other phase, times
// the slowdown known for that phase, is subtracted; the logarithm of what is left over the prediction is the step's
// deviation. (2) The deviation of a step under traffic is compared with two medians of quiet steps: the last 192 of its
// phase with about as many tokens (equal up to 8, then within half an octave), and the last 192 of its phase with any
// number. So neither errors of the linear model nor a machine whose speed drifts count as interference. (3) The ratio
// is the median of the last 1024 comparisons that are at most 10 minutes old: outliers do not move it. (4) For windows
// and sums that somebody else chooses, seconds are counted: of each 32 comparisons what their steps would have taken
// without traffic, and that times the median slowdown of the last 128. Outliers do not move these either, so the second
// is not the time of a clock.
//
// Minimum sample: 100 comparisons; each needs 16 quiet steps like it and 64 of its phase, none older than 10 minutes,
// after 64 of its phase that the line was drawn from. Where steps of one shape scatter by s, the standard error is
// about 1.25 * s * (1/sqrt(comparisons) + 1/sqrt(192)) where all traffic came in one go, and less where it came in
// bursts: 2 points at s = 10 % with the minimum, below 1 with many bursts. The ratio may therefore exceed 1. A machine
// whose speed changes by 1 % within the time of 192 quiet steps, always one way, adds up to a point. Without data, or
// when all data is old, there is no ratio.
//
// What it cannot tell apart: what goes on together with lease traffic. On a CPU, borrowers compute on the same cores
// and the same memory bus while they store and read, so the ratio includes contention for both; it also includes
// foreign work that happens to come with the traffic. Foreign work that keeps borrowers from their traffic does the
// opposite: then quiet steps are the slow ones, and the ratio exceeds 1.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "engine/meter/step_cost.h"

namespace swiftcache::engine::meter {

enum class Phase { kPrefill, kDecode };

/// Thread-safety: none. Ownership: a value. Errors: none. Units: ratio as above. Cost: below 1 microsecond a quiet
/// step, a few a step under traffic. Memory: at most half a MiB.
class InterferenceMeter {
 public:
  static constexpr int64_t kMinComparisons = 100;
  struct Estimate {
    std::optional<double> ratio;
    int64_t comparisons = 0;  // that it rests upon, or would
    // Since the start, of steps under traffic: what they took, and what they would have taken without. Never less.
    double step_seconds = 0, expected_seconds = 0;
  };

  /// One step and its time. Time never goes back. Empty steps and times are ignored.
  void Note(absl::Time now, const StepShape& shape, absl::Duration time, bool under_traffic);
  Estimate At(Phase phase, absl::Time now) const;

 private:
  static constexpr size_t kQuiet = 192;                        // steps that a step is compared with
  static constexpr size_t kMinQuietLike = 16, kMinQuiet = 64;  // of its size; of its phase
  static constexpr size_t kComparisons = 1024;
  static constexpr size_t kBins = 48;  // of shapes alike
  static constexpr int64_t kRefreshEvery = 32;
  static constexpr size_t kCharged = 128;  // comparisons that say how slow the last kRefreshEvery were

  struct Sample {
    absl::Time when;
    float deviation = 0;  // logarithm of a time over what was expected
  };
  using Samples = std::deque<Sample>;  // oldest first
  struct Track {
    std::array<Samples, kBins> by_size;  // quiet steps: deviation from the level of their time
    Samples level;                       // quiet steps: deviation from what is usual for their size
    Samples comparisons;
    double slowness = 1;  // under traffic, as known; refreshed now and then
    int64_t until_refresh = 0;
    double uncharged_seconds = 0;  // expected, of comparisons since the last refresh
    double step_seconds = 0, expected_seconds = 0;
  };

  static size_t BinOf(int64_t tokens);
  static void Push(Samples& samples, const Sample& sample, size_t most);
  static std::vector<float> Recent(const Samples& samples, absl::Time now);
  /// Nothing: fewer than `least` are recent.
  static std::optional<float> Median(const Samples& samples, absl::Time now, size_t least);
  Track& Of(Phase phase) { return tracks_[static_cast<size_t>(phase)]; }
  const Track& Of(Phase phase) const { return tracks_[static_cast<size_t>(phase)]; }
  void NoteQuiet(Track& track, Samples& like, const Sample& sample);
  /// `predicted_seconds`: of the step's own phase, by the line.
  void Compare(Track& track, const Samples& like, const Sample& sample, double predicted_seconds);
  static void Charge(Track& track);

  StepCost cost_;
  std::array<Track, 2> tracks_;
};

}  // namespace swiftcache::engine::meter
