// SPDX-License-Identifier: Apache-2.0
#include "engine/coordinator/step_reads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace swiftcache::engine::coordinator {
namespace {

using kv::LeaseId;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(StepReadsTest, NothingIsTakenBetweenSteps) {
  StepReads reads;
  EXPECT_FALSE(reads.Take(LeaseId(1)));
  ASSERT_TRUE(reads.Begin({LeaseId(1)}, {}));
  EXPECT_THAT(reads.End(), IsEmpty());
  EXPECT_FALSE(reads.TakeOrAnnounce(LeaseId(1), true));
}

TEST(StepReadsTest, OnlyWhatTheStepNamesIsTakenAndItsEndTellsOfIt) {
  StepReads reads;
  ASSERT_TRUE(reads.Begin({LeaseId(1), LeaseId(2)}, {LeaseId(3)}));
  EXPECT_TRUE(reads.TakeOrAnnounce(LeaseId(2), true));
  EXPECT_FALSE(reads.Take(LeaseId(2))) << "once";
  EXPECT_FALSE(reads.Take(LeaseId(9))) << "the step reads it, or the loop does not know it";
  EXPECT_THAT(reads.End(), ElementsAre(LeaseId(2)));
  EXPECT_THAT(reads.End(), IsEmpty());
}

TEST(StepReadsTest, WhatOthersHoldIsLeftToTheLoopFirst) {
  StepReads reads;
  ASSERT_TRUE(reads.Begin({}, {LeaseId(3)}));
  EXPECT_FALSE(reads.TakeOrAnnounce(LeaseId(3), true));
  EXPECT_TRUE(reads.Take(LeaseId(3)));
  EXPECT_THAT(reads.End(), ElementsAre(LeaseId(3)));
}

TEST(StepReadsTest, WhatIsNotToGoAtOnceIsLeftToTheLoopFirst) {
  StepReads reads;
  ASSERT_TRUE(reads.Begin({LeaseId(3)}, {}));
  EXPECT_FALSE(reads.TakeOrAnnounce(LeaseId(3), false));
  EXPECT_TRUE(reads.Take(LeaseId(3)));
  EXPECT_THAT(reads.End(), ElementsAre(LeaseId(3)));
}

TEST(StepReadsTest, WhatTheLoopHasNotAcceptedIsTakenAtAnyTimeAndNotUsed) {
  StepReads reads;
  reads.Offer(LeaseId(1)), reads.Offer(LeaseId(2)), reads.Offer(LeaseId(3));
  EXPECT_TRUE(reads.TakeOrAnnounce(LeaseId(1), true));
  ASSERT_TRUE(reads.Begin({}, {}));
  EXPECT_TRUE(reads.TakeOrAnnounce(LeaseId(2), true));
  EXPECT_FALSE(reads.Take(LeaseId(2))) << "once";
  EXPECT_THAT(reads.End(), IsEmpty()) << "the loop does not know them";
  EXPECT_FALSE(reads.Accept(LeaseId(1)));
  EXPECT_FALSE(reads.Accept(LeaseId(2)));
  EXPECT_TRUE(reads.Accept(LeaseId(3)));
  EXPECT_FALSE(reads.TakeOrAnnounce(LeaseId(3), true)) << "now the loop may read it";
}

TEST(StepReadsTest, NoStepBeginsBeforeAnAnnouncedDrainIsHandled) {
  StepReads reads;
  EXPECT_FALSE(reads.TakeOrAnnounce(LeaseId(1), true));
  EXPECT_FALSE(reads.Begin({}, {}));
  reads.Handled(LeaseId(1));
  EXPECT_TRUE(reads.Begin({LeaseId(2)}, {}));
  EXPECT_TRUE(reads.Take(LeaseId(2)));
}

// A donor that ends in order, and needs the memory a moment later.
TEST(StepReadsTest, ADrainThatIsAnnouncedBehindAnotherIsHandledToo) {
  StepReads reads;
  EXPECT_FALSE(reads.TakeOrAnnounce(LeaseId(1), false));
  EXPECT_FALSE(reads.TakeOrAnnounce(LeaseId(1), true)) << "the loop has not handled the first";
  reads.Handled(LeaseId(1));
  EXPECT_FALSE(reads.Begin({}, {})) << "the second is on its way";
  reads.Handled(LeaseId(1));
  EXPECT_TRUE(reads.Begin({}, {}));
  EXPECT_THAT(reads.End(), IsEmpty());
  reads.Handled(LeaseId(1));
  EXPECT_FALSE(reads.TakeOrAnnounce(LeaseId(1), true)) << "what was not announced is not handled beforehand";
  EXPECT_FALSE(reads.Begin({}, {}));
}

// Two threads as loop and coordinator are: of a lease that was given back nothing is read, whoever was first.
TEST(StepReadsTest, WhatWasGivenBackIsNotReadWhoeverWasFirst) {
  for (int round = 0; round < 200; ++round) {
    StepReads reads;
    std::atomic<bool> reading{false}, given_back{false}, read_late{false};
    std::thread coordinator([&] {
      for (int i = 0; i < round % 16; ++i) std::this_thread::yield();
      if (!reads.TakeOrAnnounce(LeaseId(1), true)) return;
      given_back = true;
      if (reading) read_late = true;
    });
    bool drained = false, gone = false;
    for (int64_t step = 0; !drained && !gone; ++step) {
      const bool reads_it = step % 2 == 0;
      if (!reads.Begin(reads_it ? std::vector<LeaseId>() : std::vector{LeaseId(1)}, {})) {
        reads.Handled(LeaseId(1));
        drained = true;
        break;
      }
      reading = reads_it;
      if (reads_it && given_back) read_late = true;
      std::this_thread::yield();
      reading = false;
      gone = !reads.End().empty();
    }
    coordinator.join();
    ASSERT_FALSE(read_late);
    ASSERT_EQ(gone, given_back);
  }
}

}  // namespace
}  // namespace swiftcache::engine::coordinator
