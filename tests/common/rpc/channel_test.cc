// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/channel.h"

#include <gtest/gtest.h>

#include <chrono>

#include "absl/time/clock.h"

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
  const absl::Time before = absl::Now();
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(20));
  const absl::Time deadline = absl::FromChrono(context.deadline());
  EXPECT_GE(deadline, before + absl::Seconds(20) - absl::Microseconds(1)) << "gRPC and the clock may round";
  EXPECT_LE(deadline, absl::Now() + absl::Seconds(20) + absl::Microseconds(1));
}

}  // namespace
}  // namespace swiftcache
