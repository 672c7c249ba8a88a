// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/standstill.h"

#include <gtest/gtest.h>

namespace swiftcache::engine::rpc {
namespace {

class StandstillTest : public ::testing::Test {
 protected:
  absl::Duration NoteAfter(absl::Duration time, const exec::EngineLoad& load) {
    return standstill_.Note(load, now_ += time, /*max_gap=*/absl::Seconds(3));
  }

  Standstill standstill_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(StandstillTest, ItIsTheTimeInWhichProgressDoesNotMoveUnderWork) {
  EXPECT_EQ(NoteAfter(absl::Seconds(1), {.waiting_requests = 1, .progress = 5}), absl::ZeroDuration());
  EXPECT_EQ(NoteAfter(absl::Seconds(1), {.waiting_requests = 1, .progress = 5}), absl::Seconds(1));
  EXPECT_EQ(NoteAfter(absl::Seconds(2), {.running_requests = 1, .progress = 5}), absl::Seconds(3));
  EXPECT_EQ(NoteAfter(absl::Seconds(1), {.running_requests = 1, .progress = 6}), absl::ZeroDuration());
  EXPECT_EQ(NoteAfter(absl::Seconds(1), {.running_requests = 1, .progress = 6}), absl::Seconds(1));
}

TEST_F(StandstillTest, AnIdleEngineDoesNotStandStill) {
  EXPECT_EQ(NoteAfter(absl::Seconds(1), {.progress = 5}), absl::ZeroDuration());
  EXPECT_EQ(NoteAfter(absl::Seconds(1), {.progress = 5}), absl::ZeroDuration());
  EXPECT_EQ(NoteAfter(absl::Seconds(1), {.waiting_requests = 1, .progress = 5}), absl::ZeroDuration());
  EXPECT_EQ(NoteAfter(absl::Seconds(1), {.waiting_requests = 1, .progress = 5}), absl::Seconds(1));
  EXPECT_EQ(NoteAfter(absl::Seconds(1), {.progress = 5}), absl::ZeroDuration());
}

TEST_F(StandstillTest, TimeInWhichTheProcessWasSuspendedDoesNotCount) {
  NoteAfter(absl::Seconds(1), {.running_requests = 1, .progress = 5});
  EXPECT_EQ(NoteAfter(absl::Seconds(3), {.running_requests = 1, .progress = 5}), absl::Seconds(3));
  EXPECT_EQ(NoteAfter(absl::Minutes(5), {.running_requests = 1, .progress = 5}), absl::Seconds(3));
  EXPECT_EQ(NoteAfter(absl::Seconds(1), {.running_requests = 1, .progress = 5}), absl::Seconds(4));
}

}  // namespace
}  // namespace swiftcache::engine::rpc
