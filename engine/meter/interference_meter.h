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
// phase with about as many tokens (equal up to 8, then within half an octave), and the last 96 of its phase with any
// number. So neither errors of the linear model nor a machine whose speed drifts count as interference. (3) The ratio
// is the median of the last 1024 comparisons that are at most 10 minutes old: outliers do not move it. (4) For windows
// and sums that others choose, the seconds of the steps that were compared are counted, and what these would have taken
// without traffic: the same seconds, divided by the slowdown as the median of the last 32 comparisons has it. So a step
// that took ten times as long, as some do with and without traffic, weighs ten times and says nothing.
//
// Minimum sample: 100 comparisons; each needs 16 quiet steps like it and 64 of its phase, none older than 10 minutes,
// after 64 of its phase that the line was drawn from. Where steps of one shape scatter by s, the standard error is
// about 1.25 * s * (1/sqrt(comparisons) + 1/sqrt(96)) where all traffic came in one go, and less where it came in
// bursts: 2.5 points at s = 10 % with the minimum, below 1 with many bursts. The ratio may therefore exceed 1. A machine
// whose speed changes by 1 % within the time of 96 quiet steps, always one way, adds up to a point: to the ratio, and to
// that of a window as short as the change. Without data, or when all data is old, there is no ratio.
//
// What it cannot tell apart: what goes on together with lease traffic. On a CPU, borrowers compute on the same cores
// and the same memory bus while they store and read, so the ratio includes contention for both; it also includes
// foreign work that happens to come with the traffic. Foreign work that keeps borrowers from their traffic does the
// opposite: then quiet steps are the slow ones, and the ratio exceeds 1.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "engine/meter/samples.h"
#include "engine/meter/step_cost.h"

namespace swiftcache::engine::meter {

enum class Phase { kPrefill, kDecode };

/// Thread-safety: none. Ownership: a value. Errors: none. Units: ratio as above. Cost: about 10 microseconds a step.
/// Memory: at most half a MiB.
class InterferenceMeter {
 public:
  static constexpr int64_t kMinComparisons = 100;
  struct Estimate {
    std::optional<double> ratio;
    int64_t comparisons = 0;  // that it rests upon, or would
  };
  /// Of steps under traffic, since the start: their time, and what they would have taken without. Of a mixed step the
  /// part of the phase that it counts for. The ratio of any window is that of the two increases.
  struct TrafficSeconds {
    double actual = 0, expected = 0;
  };

  /// One step and its time. Time never goes back. Empty steps and times are ignored. `stands_for`: so many steps, of
  /// which the others were not noted; their seconds count.
  void Note(absl::Time now, const StepShape& shape, absl::Duration time, bool under_traffic, double stands_for = 1);
  TrafficSeconds traffic(Phase phase) const { return Of(phase).traffic; }
  Estimate At(Phase phase, absl::Time now) const { return EstimateOf(comparisons(phase), now); }
  /// What At computes with, for a copy that another thread may ask later.
  const Samples& comparisons(Phase phase) const { return Of(phase).comparisons; }
  static Estimate EstimateOf(const Samples& comparisons, absl::Time now);
  static constexpr size_t kComparisons = 1024;

 private:
  static constexpr size_t kLevel = 96;                         // quiet steps that say how fast the machine is now
  static constexpr size_t kMinQuietLike = 16, kMinQuiet = 64;  // of its size; of its phase
  static constexpr size_t kLatest = 32;                        // comparisons, which say how slow it is now
  static constexpr size_t kBins = 48;                          // of shapes alike
  static constexpr int64_t kRefreshEvery = 32;

  struct Track {
    std::array<Samples, kBins> by_size;  // quiet steps: deviation from the level of their time
    Samples level{kLevel};               // quiet steps: deviation from what is usual for their size
    Samples comparisons{kComparisons}, latest{kLatest};
    TrafficSeconds traffic;
    double slowness = 1;  // under traffic, as known; refreshed now and then
    int64_t until_refresh = 0;
  };

  static size_t BinOf(int64_t tokens);
  Track& Of(Phase phase) { return tracks_[static_cast<size_t>(phase)]; }
  const Track& Of(Phase phase) const { return tracks_[static_cast<size_t>(phase)]; }
  void NoteQuiet(Track& track, Samples& like, absl::Time now, float deviation);
  /// `seconds`: of the step's own phase, of all steps that it stands for.
  void Compare(Track& track, const Samples& like, absl::Time now, float deviation, double seconds);

  StepCost cost_;
  std::array<Track, 2> tracks_;
};

}  // namespace swiftcache::engine::meter
