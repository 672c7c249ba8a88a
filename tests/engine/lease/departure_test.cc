// SPDX-License-Identifier: Apache-2.0
#include "engine/lease/departure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace swiftcache::engine::lease {
namespace {

using Phase = Departure::Phase;

const absl::Time kNow = absl::FromUnixSeconds(1000);
const Departure::Terms kTerms{.revoke_deadline = absl::Milliseconds(50), .has_elsewhere = true};
constexpr absl::Duration kHurry = absl::Milliseconds(40), kAgo = absl::Milliseconds(10);

Departure Waiting(absl::Duration time = absl::Seconds(4)) {
  Departure departure;
  departure.Drain(kNow + time, kNow, kTerms);
  return departure;
}
Departure Emptying() {
  Departure departure = Waiting();
  departure.Empty();
  return departure;
}
Departure Saving(absl::Duration time = kHurry) {
  Departure departure;
  departure.Drain(kNow + time, kNow, kTerms);
  return departure;
}
Departure Lost() {
  Departure departure;
  departure.Lose();
  return departure;
}

TEST(DepartureTest, BeginsInUseWithNothingToWaitFor) {
  const Departure departure;
  EXPECT_TRUE(departure.in_use());
  EXPECT_FALSE(departure.draining() || departure.waiting() || departure.emptying() || departure.lost());
  EXPECT_EQ(departure.leaves_at(), absl::InfiniteFuture());
  EXPECT_EQ(departure.save_until(), absl::InfiniteFuture());
}

TEST(DepartureTest, ADrainInAHurrySavesForHalfOfItsTime) {
  const Departure departure = Saving();
  EXPECT_EQ(departure.phase(), Phase::kSaving);
  EXPECT_TRUE(departure.draining());
  EXPECT_EQ(departure.save_until(), kNow + kHurry / 2);
}

TEST(DepartureTest, WhatIsIdleIsSavedForHalfOfARevocationsTimeAtMost) {
  EXPECT_EQ(Saving().save_idle_until(), kNow + kHurry - kTerms.revoke_deadline / 2);
  EXPECT_EQ(Saving(absl::Milliseconds(500)).save_idle_until(), kNow + kTerms.revoke_deadline / 2);
}

TEST(DepartureTest, AnUnhurriedDrainWaitsForRoomForAQuarterOfItsTime) {
  const Departure departure = Waiting();
  EXPECT_EQ(departure.phase(), Phase::kWaiting);
  EXPECT_FALSE(departure.draining()) << "blocks are used as ever";
  EXPECT_EQ(departure.leaves_at(), kNow + absl::Seconds(1));
  EXPECT_EQ(departure.save_until(), kNow + absl::Seconds(2));
}

TEST(DepartureTest, NobodyWaitsForRoomForLongerThanHisPatience) {
  EXPECT_EQ(Waiting(absl::Minutes(1)).leaves_at(), kNow + Departure::kRoomPatience);
}

TEST(DepartureTest, IsUnhurriedFromASecondOn) {
  EXPECT_TRUE(Waiting(absl::Seconds(1)).waiting());
  EXPECT_TRUE(Saving(absl::Seconds(1) - absl::Nanoseconds(1)).draining());
}

TEST(DepartureTest, WhatADonorInNeedLeavesIsNoTimeToWaitIn) {
  const Departure::Terms slow{.revoke_deadline = absl::Seconds(3)};
  Departure shorter, longer;
  shorter.Drain(kNow + absl::Seconds(6) - absl::Nanoseconds(1), kNow, slow);
  longer.Drain(kNow + absl::Seconds(6), kNow, slow);
  EXPECT_EQ(shorter.phase(), Phase::kSaving);
  EXPECT_EQ(longer.phase(), Phase::kWaiting);
}

TEST(DepartureTest, WaitsForNoRoomWhereThereIsNone) {
  Departure departure;
  departure.Drain(kNow + absl::Seconds(4), kNow, {.revoke_deadline = absl::Milliseconds(50), .has_elsewhere = false});
  EXPECT_EQ(departure.phase(), Phase::kSaving);
}

TEST(DepartureTest, WhatIsGivenBackUnaskedIsNotWorthToWait) {
  Departure departure;
  departure.GiveBack();
  EXPECT_TRUE(departure.in_use()) << "until its drain";
  EXPECT_TRUE(departure.given_back());
  departure.Drain(kNow + absl::Seconds(4), kNow, kTerms);
  EXPECT_EQ(departure.phase(), Phase::kSaving);
}

TEST(DepartureTest, WhatLeavesAlreadyIsNotGivenBack) {
  for (Departure departure : {Waiting(), Emptying(), Saving(), Lost()}) {
    departure.GiveBack();
    EXPECT_FALSE(departure.given_back());
  }
}

TEST(DepartureTest, WaitsNoLongerWhereNobodyLends) {
  Departure departure = Waiting();
  departure.NoRoom();
  EXPECT_TRUE(departure.waiting());
  EXPECT_EQ(departure.leaves_at(), absl::InfinitePast());
}

TEST(DepartureTest, ALaterDrainWithTimeWaitsAnew) {
  Departure departure = Waiting();
  departure.NoRoom();
  departure.Drain(kNow + kAgo + absl::Seconds(2), kNow + kAgo, kTerms);
  EXPECT_TRUE(departure.waiting());
  EXPECT_EQ(departure.leaves_at(), kNow + kAgo + absl::Seconds(0.5));
  EXPECT_EQ(departure.save_until(), kNow + kAgo + absl::Seconds(1));
}

TEST(DepartureTest, ALaterDrainInAHurryEndsTheWaiting) {
  Departure departure = Waiting();
  departure.Drain(kNow + kAgo + kHurry, kNow + kAgo, kTerms);
  EXPECT_EQ(departure.phase(), Phase::kSaving);
  EXPECT_EQ(departure.save_until(), kNow + kAgo + kHurry / 2);
  EXPECT_EQ(departure.leaves_at(), absl::InfiniteFuture());
}

TEST(DepartureTest, WithRoomElsewhereAllMovesThereAndThenOnlyWhatIsInUse) {
  Departure departure = Emptying();
  EXPECT_EQ(departure.phase(), Phase::kEmptying);
  EXPECT_TRUE(departure.draining());
  EXPECT_EQ(departure.leaves_at(), absl::InfiniteFuture());
  EXPECT_EQ(departure.save_until(), kNow + absl::Seconds(2)) << "as when it waited";
  departure.Emptied();
  EXPECT_EQ(departure.phase(), Phase::kSaving);
  EXPECT_EQ(departure.save_until(), kNow + absl::Seconds(2));
}

TEST(DepartureTest, ADrainOfWhatLeavesEndsItNoLaterAndEmptiesNothing) {
  for (const bool emptying : {true, false}) {
    for (const absl::Duration time : {kHurry, absl::Seconds(1), absl::Minutes(1)}) {
      Departure departure = emptying ? Emptying() : Saving(kHurry * 2);
      const absl::Time before = departure.save_until();
      departure.Drain(kNow + kAgo + time, kNow + kAgo, kTerms);
      EXPECT_EQ(departure.phase(), Phase::kSaving);
      EXPECT_EQ(departure.save_until(), std::min(before, kNow + kAgo + time / 2));
    }
  }
}

TEST(DepartureTest, WhatIsLostIsLostWhateverComes) {
  for (Departure departure : {Departure(), Waiting(), Emptying(), Saving()}) {
    departure.Lose();
    departure.Drain(kNow + absl::Seconds(4), kNow, kTerms);
    departure.Empty();
    departure.Emptied();
    departure.NoRoom();
    EXPECT_TRUE(departure.lost());
    EXPECT_FALSE(departure.draining());
    EXPECT_EQ(departure.leaves_at(), absl::InfiniteFuture());
  }
}

TEST(DepartureTest, RoomElsewhereIsOfUseOnlyToWhoWaitsForIt) {
  for (Departure departure : {Departure(), Saving(), Lost()}) {
    const Phase before = departure.phase();
    departure.Empty();
    departure.Emptied();
    EXPECT_EQ(departure.phase(), before);
  }
}

}  // namespace
}  // namespace swiftcache::engine::lease
