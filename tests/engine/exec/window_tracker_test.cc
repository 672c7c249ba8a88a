// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/window_tracker.h"

#include <gtest/gtest.h>

namespace swiftcache::engine::exec {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1000);

absl::Time At(double seconds) { return kStart + absl::Seconds(seconds); }

TEST(WindowTrackerTest, WhatIsInUseAndWhatWaitsIsReported) {
  WindowTracker tracker({});
  tracker.Note(At(0), 5, 3, 100);
  EXPECT_EQ(tracker.TakeUpdate(At(0)),
            (coordinator::Window{.used_blocks = 5, .waiting_blocks = 3, .max_request_tokens = 100, .peak_blocks = 8}));
}

TEST(WindowTrackerTest, NothingNewIsNoNews) {
  WindowTracker tracker({});
  tracker.Note(At(0), 5, 3, 100);
  ASSERT_TRUE(tracker.TakeUpdate(At(0)).has_value());
  tracker.Note(At(1), 5, 3, 100);
  EXPECT_FALSE(tracker.TakeUpdate(At(1)).has_value());
}

TEST(WindowTrackerTest, ReportsAreNoCloserThanTheInterval) {
  WindowTracker tracker({.min_interval = absl::Milliseconds(200)});
  tracker.Note(At(0), 1, 0, 10);
  ASSERT_TRUE(tracker.TakeUpdate(At(0)).has_value());
  tracker.Note(At(0.1), 2, 0, 10);
  EXPECT_FALSE(tracker.TakeUpdate(At(0.1)).has_value());
  EXPECT_EQ(tracker.NextUpdate(), At(0.2));
  const auto late = tracker.TakeUpdate(At(0.2));
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(late->used_blocks, 2);
}

TEST(WindowTrackerTest, APeakIsRememberedForTheWindowAndForgottenAfterIt) {
  WindowTracker tracker({.window = absl::Seconds(10)});
  tracker.Note(At(0), 50, 0, 400);
  tracker.Note(At(2), 1, 0, 7);
  const auto within = tracker.TakeUpdate(At(9));
  ASSERT_TRUE(within.has_value());
  EXPECT_EQ(within->peak_blocks, 50);
  EXPECT_EQ(within->max_request_tokens, 400);
  EXPECT_EQ(within->used_blocks, 1) << "of now, not of the window";
  const auto after = tracker.TakeUpdate(At(10));
  ASSERT_TRUE(after.has_value());
  EXPECT_EQ(after->peak_blocks, 1);
  EXPECT_EQ(after->max_request_tokens, 7);
}

TEST(WindowTrackerTest, AShortWindowRemembersItsLastPeakAsLong) {
  WindowTracker tracker({.window = absl::Seconds(1)});
  tracker.Note(At(0), 1, 0, 7);
  tracker.Note(At(0.9), 50, 0, 400);
  tracker.Note(At(0.95), 1, 0, 7);
  EXPECT_EQ(tracker.TakeUpdate(At(1.8))->peak_blocks, 50);
  EXPECT_EQ(tracker.TakeUpdate(At(2.1))->peak_blocks, 0);
}

kv::Reuse FoundInPart(int part) {
  kv::Reuse reuse{.looked_up = 100};
  reuse.found[part] = 90;
  return reuse;
}

TEST(WindowTrackerTest, WhatTheCacheIsWorthOutlastsAPauseOfSixteenWindows) {
  WindowTracker tracker({.window = absl::Seconds(10), .num_blocks = 320});
  tracker.NoteReuse(At(0), FoundInPart(9));
  EXPECT_EQ(tracker.TakeUpdate(At(1))->cache_blocks, 110);
  tracker.NoteReuse(At(100), FoundInPart(4));
  EXPECT_FALSE(tracker.TakeUpdate(At(169)).has_value());
  EXPECT_EQ(tracker.NextUpdate(), At(170));
  EXPECT_EQ(tracker.TakeUpdate(At(170))->cache_blocks, 60) << "of the later prompts";
  EXPECT_EQ(tracker.TakeUpdate(At(270))->cache_blocks, 0);
  EXPECT_EQ(tracker.NextUpdate(), absl::InfiniteFuture());
}

TEST(WindowTrackerTest, WhoThrashesKeepsHalfWhileItPauses) {
  WindowTracker tracker({.window = absl::Seconds(60), .num_blocks = 320});
  kv::Reuse thrashes = FoundInPart(9);
  thrashes.looked_up = 200;
  tracker.NoteReuse(At(0), thrashes);
  tracker.Note(At(1), 5, 0, 70);
  tracker.Note(At(2), 0, 0, 0);
  EXPECT_EQ(tracker.TakeUpdate(At(2))->cache_blocks, 110);
  EXPECT_EQ(tracker.NextUpdate(), At(11)) << "ten seconds after it had something to do";
  EXPECT_FALSE(tracker.TakeUpdate(At(10.9)).has_value());
  EXPECT_EQ(tracker.TakeUpdate(At(11))->cache_blocks, 55);
  EXPECT_EQ(tracker.NextUpdate(), At(61));
  tracker.Note(At(40), 0, 3, 70);
  EXPECT_EQ(tracker.TakeUpdate(At(40))->cache_blocks, 110) << "asked again";
}

TEST(WindowTrackerTest, WhoFindsMostKeepsItWhileItPauses) {
  WindowTracker tracker({.window = absl::Seconds(60), .num_blocks = 320});
  tracker.NoteReuse(At(0), FoundInPart(9));
  tracker.Note(At(1), 5, 0, 70);
  tracker.Note(At(2), 0, 0, 0);
  EXPECT_EQ(tracker.TakeUpdate(At(2))->cache_blocks, 110);
  EXPECT_FALSE(tracker.TakeUpdate(At(12)).has_value());
  EXPECT_EQ(tracker.NextUpdate(), At(61)) << "the pause has been looked at: nothing to wake up for";
}

TEST(WindowTrackerTest, APauseIsNoLongerThanTheWindow) {
  WindowTracker tracker({.window = absl::Seconds(3), .num_blocks = 320});
  tracker.Note(At(1), 5, 0, 70);
  tracker.NoteReuse(At(1), {.looked_up = 100, .found = {20}});
  EXPECT_EQ(tracker.TakeUpdate(At(1))->cache_blocks, 20);
  EXPECT_EQ(tracker.TakeUpdate(At(4))->cache_blocks, 10);
}

TEST(WindowTrackerTest, ANewWindowHoldsForWhatWasSeenBefore) {
  WindowTracker tracker({.window = absl::Seconds(60), .min_interval = absl::ZeroDuration()});
  tracker.Note(kStart, 100, 0, 0);
  tracker.Note(kStart + absl::Seconds(1), 0, 0, 0);
  EXPECT_EQ(tracker.TakeUpdate(kStart + absl::Seconds(5))->peak_blocks, 100);
  tracker.SetWindow(absl::Seconds(3));
  EXPECT_EQ(tracker.TakeUpdate(kStart + absl::Seconds(5))->peak_blocks, 0);
}

TEST(WindowTrackerTest, TheEndOfAnIdleWindowIsNewsByItself) {
  WindowTracker tracker({.window = absl::Seconds(10)});
  tracker.Note(At(0), 50, 0, 400);
  ASSERT_TRUE(tracker.TakeUpdate(At(0)).has_value());
  tracker.Note(At(1), 0, 0, 0);
  ASSERT_TRUE(tracker.TakeUpdate(At(1)).has_value());
  EXPECT_EQ(tracker.NextUpdate(), At(10));
  EXPECT_EQ(tracker.TakeUpdate(At(10)), coordinator::Window());
  EXPECT_EQ(tracker.NextUpdate(), absl::InfiniteFuture()) << "nothing is left to grow old";
}

TEST(WindowTrackerTest, WhoWaitsForNewsNeverWaitsForThePast) {
  WindowTracker tracker({.window = absl::Seconds(10), .min_interval = absl::Milliseconds(200)});
  tracker.Note(At(0), 50, 0, 400);
  ASSERT_TRUE(tracker.TakeUpdate(At(0)).has_value());
  tracker.Note(At(9.9), 1, 0, 7);
  ASSERT_TRUE(tracker.TakeUpdate(At(9.9)).has_value());
  EXPECT_FALSE(tracker.TakeUpdate(At(10)).has_value()) << "too soon, although the peak is too old";
  EXPECT_EQ(tracker.NextUpdate(), At(9.9) + absl::Milliseconds(200));
  EXPECT_TRUE(tracker.TakeUpdate(tracker.NextUpdate()).has_value());
}

}  // namespace
}  // namespace swiftcache::engine::exec
