// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/proto_duration.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace swiftcache {
namespace {

TEST(ProtoDurationTest, SecondsAndNanosAreThoseOfTheWire) {
  const google::protobuf::Duration proto = DurationToProto(absl::Seconds(3) + absl::Nanoseconds(250));
  EXPECT_EQ(proto.seconds(), 3);
  EXPECT_EQ(proto.nanos(), 250);
  const google::protobuf::Duration negative = DurationToProto(-absl::Milliseconds(1500));
  EXPECT_EQ(negative.seconds(), -1);
  EXPECT_EQ(negative.nanos(), -500'000'000);
}

TEST(ProtoDurationTest, WhatIsWrittenIsReadAgain) {
  for (const absl::Duration duration : {absl::ZeroDuration(), absl::Nanoseconds(1), absl::Milliseconds(1500),
                                        -absl::Nanoseconds(1), absl::Hours(24 * 365 * 1000)}) {
    EXPECT_EQ(DurationFromProto(DurationToProto(duration)), duration);
  }
}

TEST(ProtoDurationTest, NumbersThatNoDurationHasAreReadAllTheSame) {
  google::protobuf::Duration proto;
  proto.set_seconds(std::numeric_limits<int64_t>::max());
  proto.set_nanos(std::numeric_limits<int32_t>::max());
  EXPECT_GT(DurationFromProto(proto), absl::Hours(1));
  EXPECT_EQ(DurationToProto(DurationFromProto(proto)).seconds(), 315'576'000'000);
  proto.set_seconds(1);
  proto.set_nanos(-1);
  EXPECT_EQ(DurationFromProto(proto), absl::Seconds(1) - absl::Nanoseconds(1));
}

}  // namespace
}  // namespace swiftcache
