// SPDX-License-Identifier: Apache-2.0
// NCCL is polled by the monotonic clock. A program of its own, since it makes one of the system's calls its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "tests/engine/transport/nccl/nccl_harness.h"
#include "tests/fakes/stepped_wall_clock.h"

namespace swiftcache::engine::transport::nccl {
namespace {

class NcclClockTest : public testing::Test {
 protected:
  NcclClockTest() { (void)Lend(donor_, borrower_, kLease, 0); }
  void ExpectNotLate() { EXPECT_LT(clock_.Now() - begin_, absl::Seconds(15)); }

  ShmFolder folder_;
  NcclNode donor_{folder_, "donor"}, borrower_{folder_, "borrower"};
  const RealClock clock_;
  const absl::Time begin_ = clock_.Now();
};

TEST_F(NcclClockTest, ALoadTakesNoLongerWhereTheWallClockIsSetBack) {
  const SteppedWallClock stepped(/*seconds=*/30);
  EXPECT_THAT(borrower_.LoadNow(kLease, 0, kPiece, 0), testing::IsEmpty());
  ExpectNotLate();
}

}  // namespace
}  // namespace swiftcache::engine::transport::nccl
