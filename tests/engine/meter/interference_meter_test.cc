// SPDX-License-Identifier: Apache-2.0
#include "engine/meter/interference_meter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace swiftcache::engine::meter {
namespace {

constexpr double kPoints = 0.03;
const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1000);

// A donor whose steps are not as the meter's line has them: batches grow cheaper, contexts cross a cache's size, the
// machine's speed swings by a fifth, one step in a hundred takes two to eleven times as long, and traffic prefers full
// batches. Under traffic each phase is slower by what was planted.
class PlantedDonor {
 public:
  struct Plant {
    double prefill_slowdown = 0, decode_slowdown = 0;
    double noise = 0.05;
    double mixed_share = 0.3;  // of steps that prefill as well
    double traffic_share = 0.5;
    double swing = 0.2;  // of the machine's speed, within five minutes
    double slower = 1;   // every step takes so many times as long
  };
  PlantedDonor(const Plant& plant, uint64_t seed) : plant_(plant), rng_(seed) {}

  void Run(InterferenceMeter& meter, int steps) {
    for (int i = 0; i < steps; ++i) {
      if (left_in_burst_-- <= 0) NextBurst();
      const StepShape shape = NextShape();
      const double seconds = Time(shape) * std::exp(plant_.noise * normal_(rng_)) * Outlier();
      now_ += absl::Seconds(seconds);
      meter.Note(now_, shape, absl::Seconds(seconds), traffic_);
    }
  }
  absl::Time now() const { return now_; }

 private:
  void NextBurst() {
    traffic_ = uniform_(rng_) < plant_.traffic_share;
    left_in_burst_ = 5 + static_cast<int>(rng_() % 100);
  }
  StepShape NextShape() {
    StepShape shape;
    const bool mixed = uniform_(rng_) < plant_.mixed_share;
    shape.decode_tokens = static_cast<int64_t>(rng_() % (traffic_ ? 13 : 9)) + (traffic_ ? 1 : 0);
    if (shape.decode_tokens == 0 && !mixed) shape.decode_tokens = 1;
    shape.decode_pairs = shape.decode_tokens * (50 + static_cast<int64_t>(rng_() % 1500));
    if (mixed) {
      shape.prefill_tokens = 16 + static_cast<int64_t>(rng_() % 240);
      shape.prefill_pairs = shape.prefill_tokens * (shape.prefill_tokens / 2 + static_cast<int64_t>(rng_() % 1000));
    }
    return shape;
  }
  double Time(const StepShape& s) const {
    const double swing = 1 + plant_.swing * std::sin(absl::ToDoubleSeconds(now_ - kStart) / 50);
    const double prefill = 1e-4 * std::pow(s.prefill_tokens, 0.97) + 1e-8 * s.prefill_pairs;
    const double decode =
        8e-4 * std::pow(s.decode_tokens, 0.85) + (s.decode_pairs > 6000 ? 1.3e-7 : 1e-7) * s.decode_pairs;
    const double sp = traffic_ ? plant_.prefill_slowdown : 0, sd = traffic_ ? plant_.decode_slowdown : 0;
    const double base = 3e-3, slow = (prefill * sp + decode * sd) / (prefill + decode);
    return plant_.slower * swing * (prefill * (1 + sp) + decode * (1 + sd) + base * (1 + slow));
  }
  double Outlier() { return uniform_(rng_) < 0.01 ? 2 + 9 * uniform_(rng_) : 1; }

  const Plant plant_;
  std::mt19937_64 rng_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
  absl::Time now_ = kStart;
  bool traffic_ = false;
  int left_in_burst_ = 0;
};

TEST(InterferenceMeterTest, FindsAPlantedSlowdownWithinThreePoints) {
  double worst = 0;
  for (const double noise : {0.05, 0.10}) {
    for (const double prefill : {0.0, 0.03, 0.10}) {
      for (const double decode : {0.0, 0.03, 0.10}) {
        for (uint64_t seed = 1; seed <= 5; ++seed) {
          InterferenceMeter meter;
          PlantedDonor donor({.prefill_slowdown = prefill, .decode_slowdown = decode, .noise = noise}, seed);
          donor.Run(meter, 8000);
          const auto p = meter.At(Phase::kPrefill, donor.now()), d = meter.At(Phase::kDecode, donor.now());
          const std::string what =
              absl::StrCat("noise ", noise, " prefill ", prefill, " decode ", decode, " seed ", seed);
          ASSERT_TRUE(p.ratio.has_value() && d.ratio.has_value()) << what;
          EXPECT_NEAR(*p.ratio, 1 / (1 + prefill), kPoints) << what;
          EXPECT_NEAR(*d.ratio, 1 / (1 + decode), kPoints) << what;
          worst = std::max({worst, std::abs(*p.ratio - 1 / (1 + prefill)), std::abs(*d.ratio - 1 / (1 + decode))});
        }
      }
    }
  }
  std::printf("worst of 180 estimates: %.2f points off\n", 100 * worst);
}

TEST(InterferenceMeterTest, LittleTrafficIsEnoughIfThereIsTheMinimum) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    InterferenceMeter meter;
    PlantedDonor donor({.prefill_slowdown = 0.1, .decode_slowdown = 0.1, .traffic_share = 0.1}, seed);
    donor.Run(meter, 8000);
    const auto d = meter.At(Phase::kDecode, donor.now());
    ASSERT_TRUE(d.ratio.has_value()) << "seed " << seed << " comparisons " << d.comparisons;
    EXPECT_NEAR(*d.ratio, 1 / 1.1, kPoints) << "seed " << seed;
  }
}

TEST(InterferenceMeterTest, AChangeOfTheSlowdownIsFollowed) {
  InterferenceMeter meter;
  PlantedDonor quiet({.decode_slowdown = 0}, 5);
  quiet.Run(meter, 8000);
  EXPECT_NEAR(*meter.At(Phase::kDecode, quiet.now()).ratio, 1, kPoints);
  PlantedDonor slow({.decode_slowdown = 0.3}, 5);
  slow.Run(meter, 8000);
  EXPECT_NEAR(*meter.At(Phase::kDecode, slow.now()).ratio, 1 / 1.3, kPoints);
}

using Seconds = InterferenceMeter::TrafficSeconds;
Seconds operator-(const Seconds& a, const Seconds& b) { return {a.actual - b.actual, a.expected - b.expected}; }
Seconds operator+(const Seconds& a, const Seconds& b) { return {a.actual + b.actual, a.expected + b.expected}; }

// One engine, scraped every minute after the first three.
class ScrapedDonor {
 public:
  ScrapedDonor(const PlantedDonor::Plant& plant, uint64_t seed, Phase phase, int minutes) {
    InterferenceMeter meter;
    PlantedDonor donor(plant, seed);
    for (int minute = 3; minute <= minutes; ++minute) {
      while (donor.now() < kStart + absl::Minutes(minute)) donor.Run(meter, 1);
      scrapes_.push_back(meter.traffic(phase));
    }
  }
  size_t minutes() const { return scrapes_.size() - 1; }
  // increase() of the two counters over the window that ends with that minute.
  Seconds Increase(size_t end, size_t window) const { return scrapes_[end] - scrapes_[end - window]; }

 private:
  std::vector<Seconds> scrapes_;
};

// The other engine computes three times as long, and is half as much again slower under traffic. In a minute it has few
// prefills to compare, so its machine is the steadier one.
TEST(InterferenceMeterTest, SecondsGiveTheRatioOfAnyWindowAndOfTwoEnginesTogether) {
  double worst = 0;
  const auto expect = [&worst](const Seconds& seconds, double ratio) {
    EXPECT_NEAR(seconds.expected / seconds.actual, ratio, kPoints);
    worst = std::max(worst, std::abs(seconds.expected / seconds.actual - ratio));
  };
  for (const double s : {0.0, 0.03, 0.1}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
        const double t = 1.5 * s;
        const ScrapedDonor one({.prefill_slowdown = s, .decode_slowdown = s, .swing = 0.1}, seed, phase, 13);
        const ScrapedDonor other(
            {.prefill_slowdown = t, .decode_slowdown = t, .mixed_share = 0.5, .swing = 0.05, .slower = 3}, seed + 100,
            phase, 13);
        for (const size_t window : {1, 5}) {
          for (size_t end = window; end <= one.minutes(); ++end) {
            SCOPED_TRACE(absl::StrCat("slowdown ", s, " seed ", seed, " phase ", static_cast<int>(phase), " window ",
                                      window, " to ", end));
            const Seconds a = one.Increase(end, window), b = other.Increase(end, window);
            expect(a, 1 / (1 + s));
            expect(b, 1 / (1 + t));
            expect(a + b, (a.actual / (1 + s) + b.actual / (1 + t)) / (a.actual + b.actual));
          }
        }
      }
    }
  }
  std::printf("worst window: %.2f points off\n", 100 * worst);
}

TEST(InterferenceMeterTest, AWindowAfterAChangeOfTheSlowdownKnowsNothingOfTheTimeBefore) {
  InterferenceMeter meter;
  absl::Time now = kStart;
  const auto run = [&](int under_traffic_ms) {
    const Seconds before = meter.traffic(Phase::kDecode);
    for (int i = 0; i < 6000; ++i) {
      const bool traffic = i / 50 % 2 == 1;
      const absl::Duration time = absl::Milliseconds(traffic ? under_traffic_ms : 10);
      now += time;
      meter.Note(now, {.decode_tokens = 2, .decode_pairs = 200}, time, traffic);
    }
    const Seconds seconds = meter.traffic(Phase::kDecode) - before;
    return seconds.expected / seconds.actual;
  };
  EXPECT_NEAR(run(10), 1, 0.001);
  EXPECT_NEAR(run(15), 10.0 / 15, 0.01);
  EXPECT_NEAR(run(10), 1, 0.01);
}

TEST(InterferenceMeterTest, AStepStandsForTheTimeOfOthers) {
  InterferenceMeter meter;
  absl::Time now = kStart;
  for (int i = 0; i < 600; ++i) {
    const bool traffic = i >= 300;
    const absl::Duration time = absl::Milliseconds(traffic ? 12 : 10);
    now += 5 * time;
    meter.Note(now, {.decode_tokens = 2, .decode_pairs = 200}, time, traffic, /*stands_for=*/5);
  }
  EXPECT_NEAR(meter.traffic(Phase::kDecode).actual, 300 * 5 * 0.012, 1e-6);
  EXPECT_NEAR(meter.traffic(Phase::kDecode).expected, 300 * 5 * 0.010, 1e-2);
}

TEST(InterferenceMeterTest, WithoutStepsThereIsNoRatio) {
  const InterferenceMeter meter;
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    EXPECT_FALSE(meter.At(phase, kStart).ratio.has_value());
    EXPECT_EQ(meter.At(phase, kStart).comparisons, 0);
  }
}

TEST(InterferenceMeterTest, TrafficAloneOrQuietAloneGivesNoRatio) {
  for (const double share : {0.0, 1.0}) {
    InterferenceMeter meter;
    PlantedDonor donor({.traffic_share = share}, 1);
    donor.Run(meter, 5000);
    EXPECT_FALSE(meter.At(Phase::kDecode, donor.now()).ratio.has_value()) << share;
    EXPECT_FALSE(meter.At(Phase::kPrefill, donor.now()).ratio.has_value()) << share;
  }
}

TEST(InterferenceMeterTest, APhaseThatDoesNotRunHasNoRatio) {
  InterferenceMeter meter;
  PlantedDonor donor({.mixed_share = 0}, 1);
  donor.Run(meter, 5000);
  EXPECT_TRUE(meter.At(Phase::kDecode, donor.now()).ratio.has_value());
  EXPECT_FALSE(meter.At(Phase::kPrefill, donor.now()).ratio.has_value());
}

TEST(InterferenceMeterTest, TheRatioComesWithTheHundredthComparisonAndGoesWithAge) {
  InterferenceMeter meter;
  absl::Time now = kStart;
  const StepShape shape = {.decode_tokens = 2, .decode_pairs = 200};
  const auto note = [&](bool traffic) {
    now += absl::Milliseconds(10);
    meter.Note(now, shape, absl::Milliseconds(traffic ? 12 : 10), traffic);
  };
  for (int i = 0; i < 200; ++i) note(false);
  for (int i = 0; i < 99; ++i) note(true);
  EXPECT_EQ(meter.At(Phase::kDecode, now).comparisons, 99);
  EXPECT_FALSE(meter.At(Phase::kDecode, now).ratio.has_value());
  note(true);
  ASSERT_TRUE(meter.At(Phase::kDecode, now).ratio.has_value());
  EXPECT_NEAR(*meter.At(Phase::kDecode, now).ratio, 10.0 / 12, 1e-3);
  EXPECT_FALSE(meter.At(Phase::kDecode, now + absl::Minutes(11)).ratio.has_value());
}

TEST(InterferenceMeterTest, StepsUnlikeAnyQuietOneAreNotCompared) {
  InterferenceMeter meter;
  absl::Time now = kStart;
  for (int i = 0; i < 1000; ++i) {
    now += absl::Milliseconds(10);
    meter.Note(now, {.decode_tokens = 2, .decode_pairs = 200}, absl::Milliseconds(10), false);
    meter.Note(now, {.decode_tokens = 64, .decode_pairs = 6400}, absl::Milliseconds(90), true);
  }
  EXPECT_EQ(meter.At(Phase::kDecode, now).comparisons, 0);
}

TEST(InterferenceMeterTest, EmptyStepsAndTimesThatAreNoneAreIgnored) {
  InterferenceMeter meter;
  for (int i = 0; i < 1000; ++i) {
    meter.Note(kStart, {}, absl::Milliseconds(10), false);
    meter.Note(kStart, {.decode_tokens = 1, .decode_pairs = 1}, absl::ZeroDuration(), i % 2 == 0);
  }
  EXPECT_EQ(meter.At(Phase::kDecode, kStart).comparisons, 0);
}

}  // namespace
}  // namespace swiftcache::engine::meter
