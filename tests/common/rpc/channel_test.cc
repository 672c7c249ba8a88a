// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/channel.h"

#include <gtest/gtest.h>

#include <chrono>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/wall_time.h"
#include "tests/fakes/stepped_wall_clock.h"

namespace swiftcache {
namespace {

TEST(ChannelTest, ACallHasTheDeadlineThatItIsGiven) {
  grpc::ClientContext context;
  SetDeadline(context, absl::FromUnixSeconds(2'000'000'000));
  EXPECT_EQ(absl::FromChrono(context.deadline()), absl::FromUnixSeconds(2'000'000'000));
}

TEST(ChannelTest, TheInfiniteFutureIsNoDeadline) {
  const std::chrono::system_clock::time_point none = grpc::ClientContext().deadline();
  grpc::ClientContext by_time, by_timeout;
  SetDeadline(by_time, absl::InfiniteFuture());
  SetTimeout(by_timeout, absl::InfiniteDuration());
  EXPECT_EQ(by_time.deadline(), none);
  EXPECT_EQ(by_timeout.deadline(), none);
}

TEST(ChannelTest, ATimeoutBeginsNow) {
  const absl::Time before = WallTimeNow();
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(20));
  const absl::Time deadline = absl::FromChrono(context.deadline());
  EXPECT_GE(deadline, before + absl::Seconds(20) - absl::Microseconds(1)) << "gRPC and the clock may round";
  EXPECT_LE(deadline, WallTimeNow() + absl::Seconds(20) + absl::Microseconds(1));
}

// gRPC reads the clock anew, and absl::Now() reckons from what it has seen, once it has been asked for half a second.
TEST(ChannelTest, ATimeoutBeginsNowAlsoWhereTheWallClockHasJustBeenSet) {
  const RealClock clock;
  for (const absl::Time end = clock.Now() + absl::Seconds(1); clock.Now() < end; (void)absl::Now())
    absl::SleepFor(absl::Milliseconds(10));
  const SteppedWallClock stepped(/*seconds=*/20);
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(10));
  EXPECT_GT(context.deadline(), std::chrono::system_clock::now());
}

}  // namespace
}  // namespace swiftcache
