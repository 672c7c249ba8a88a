// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/urgency.h"

#include <gtest/gtest.h>

#include <vector>

namespace swiftcache::engine::exec {
namespace {

using coordinator::DrainMessage;
using coordinator::LoseMessage;

const absl::Time kNoted = absl::FromUnixSeconds(1000);
constexpr kv::LeaseId kUrgentLease(7);
const std::vector<kv::LeaseId> kReadByStep = {kUrgentLease};

DrainMessage DrainIn(absl::Duration time) { return {.id = kUrgentLease, .until = kNoted + time}; }

TEST(UrgencyTest, AStepThatReadsWhatIsWantedBackMayTakeAQuarterOfTheTime) {
  Urgency urgency;
  EXPECT_TRUE(urgency.empty());
  urgency.Note(DrainIn(absl::Milliseconds(40)), kNoted);
  EXPECT_EQ(urgency.Earliest(kReadByStep), kNoted + absl::Milliseconds(10));
  EXPECT_EQ(urgency.Earliest({}), absl::InfiniteFuture());
  urgency.Forget(kUrgentLease);
  EXPECT_TRUE(urgency.empty());
}

TEST(UrgencyTest, WhatIsWantedBackOrLostConcernsWhoReadsIt) {
  constexpr kv::LeaseId kLostLease(8);
  Urgency urgency;
  EXPECT_FALSE(urgency.Concerns(kReadByStep));
  urgency.Note(LoseMessage{kLostLease}, kNoted);
  EXPECT_FALSE(urgency.Concerns(kReadByStep));
  EXPECT_TRUE(urgency.Concerns(std::vector<kv::LeaseId>{kv::LeaseId(6), kLostLease}));
  urgency.Note(DrainIn(absl::Milliseconds(40)), kNoted);
  EXPECT_TRUE(urgency.Concerns(kReadByStep));
  EXPECT_FALSE(urgency.Concerns({}));
}

TEST(UrgencyTest, WhatMayWaitIsNotUrgentUnlessItsDonorIsGone) {
  Urgency urgency;
  urgency.Note(DrainIn(absl::Seconds(9)), kNoted);
  urgency.NotYet(kUrgentLease);
  EXPECT_TRUE(urgency.empty());
  urgency.Note(DrainIn(absl::Seconds(9)), kNoted);
  urgency.Note(LoseMessage{kUrgentLease}, kNoted);
  urgency.NotYet(kUrgentLease);
  EXPECT_EQ(urgency.Earliest({}), kNoted + Urgency::kUnmapWithin);
}

// A donor that ends in order, and needs the memory before the loop has heard of that.
TEST(UrgencyTest, ADrainThatMayWaitTakesNoUrgencyFromTheOneBehindIt) {
  Urgency urgency;
  urgency.Note(DrainIn(absl::Seconds(9)), kNoted);
  urgency.Note(DrainIn(absl::Milliseconds(40)), kNoted);
  urgency.NotYet(kUrgentLease);
  EXPECT_EQ(urgency.Earliest(kReadByStep), kNoted + absl::Milliseconds(10));
  urgency.NotYet(kUrgentLease);
  EXPECT_TRUE(urgency.empty()) << "both may wait";
}

}  // namespace
}  // namespace swiftcache::engine::exec
