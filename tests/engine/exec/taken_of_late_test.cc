// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/taken_of_late.h"

#include <gtest/gtest.h>

namespace swiftcache::engine::exec {
namespace {

TEST(TakenOfLateTest, NothingIsNothing) { EXPECT_EQ(TakenOfLate().blocks(absl::UnixEpoch()), 0); }

TEST(TakenOfLateTest, WhatGoesTogetherCountsTogether) {
  TakenOfLate taken;
  const absl::Time now = absl::UnixEpoch();
  taken.Note(30, now);
  taken.Note(12, now + TakenOfLate::kSpan / 2);
  EXPECT_EQ(taken.blocks(now + TakenOfLate::kSpan / 2), 42);
}

TEST(TakenOfLateTest, ASpanThatHasJustBegunDoesNotHideTheOneBefore) {
  TakenOfLate taken;
  const absl::Time now = absl::UnixEpoch();
  taken.Note(30, now);
  taken.Note(1, now + TakenOfLate::kSpan);
  EXPECT_EQ(taken.blocks(now + TakenOfLate::kSpan), 30);
  taken.Note(50, now + TakenOfLate::kSpan);
  EXPECT_EQ(taken.blocks(now + TakenOfLate::kSpan), 51);
}

TEST(TakenOfLateTest, WhatIsLongAgoIsForgotten) {
  TakenOfLate taken;
  const absl::Time now = absl::UnixEpoch();
  taken.Note(30, now);
  EXPECT_EQ(taken.blocks(now + 2 * TakenOfLate::kSpan), 0);
  taken.Note(1, now + 2 * TakenOfLate::kSpan);
  EXPECT_EQ(taken.blocks(now + 2 * TakenOfLate::kSpan), 1);
}

}  // namespace
}  // namespace swiftcache::engine::exec
