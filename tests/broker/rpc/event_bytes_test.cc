// SPDX-License-Identifier: Apache-2.0
#include "broker/rpc/event_bytes.h"

#include <gtest/gtest.h>

#include <string>

#include "broker/rpc/proto_convert.h"

namespace swiftcache::broker::rpc {
namespace {

loop::WatchEvent LeaseEvent(int64_t number) {
  const ledger::Lease lease{.donor = {"code", "i1"}, .borrower = {"chat", "i2"}, .capability = "secret"};
  return {.incarnation = "inc-1", .what = lease, .number = number};
}

v1::WatchResponse Parsed(const grpc::Slice& bytes, int64_t version) {
  grpc::Slice whole;
  v1::WatchResponse message;
  EXPECT_TRUE(WithVersion(bytes, version).DumpToSingleSlice(&whole).ok());
  EXPECT_TRUE(message.ParseFromArray(whole.begin(), static_cast<int>(whole.size())));
  return message;
}

TEST(EventBytesTest, AllWhoWatchEverythingShareTheBytesOfAnEvent) {
  EventBytes bytes(/*max_unread_snapshot_bytes=*/0);
  const std::vector<grpc::Slice> first = bytes.For(LeaseEvent(1), ""), second = bytes.For(LeaseEvent(1), "");
  ASSERT_EQ(first.size(), 1u);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(first[0].begin(), second[0].begin());
  const v1::WatchResponse message = Parsed(first[0], 7);
  EXPECT_EQ(message.version(), 7);
  EXPECT_EQ(message.incarnation(), "inc-1");
  EXPECT_EQ(message.lease().donor(), "code");
  EXPECT_EQ(Parsed(first[0], int64_t{1} << 40).version(), int64_t{1} << 40);
}

TEST(EventBytesTest, AnotherEventHasOtherBytesThoughItsNumberBeTheSame) {
  EventBytes bytes(/*max_unread_snapshot_bytes=*/0);
  EXPECT_TRUE(Parsed(bytes.For(LeaseEvent(1), "")[0], 1).has_lease());
  const loop::WatchEvent snapshot{.incarnation = "inc-1", .what = loop::WatchEvent::Snapshot{}, .number = 1};
  EXPECT_TRUE(Parsed(bytes.For(snapshot, "")[0], 1).has_snapshot());
  loop::WatchEvent next = LeaseEvent(2);
  std::get<ledger::Lease>(next.what).donor.name = "summary";
  EXPECT_EQ(Parsed(bytes.For(next, "")[0], 1).lease().donor(), "summary");
}

TEST(EventBytesTest, WhatIsMadeForAnEngineGoesToNobodyElse) {
  EventBytes bytes(/*max_unread_snapshot_bytes=*/0);
  EXPECT_EQ(Parsed(bytes.For(LeaseEvent(1), "")[0], 1).lease().capability(), "");
  EXPECT_EQ(Parsed(bytes.For(LeaseEvent(1), "i1")[0], 1).lease().capability(), "secret");
  EXPECT_EQ(Parsed(bytes.For(LeaseEvent(1), "")[0], 1).lease().capability(), "");
  EXPECT_EQ(Parsed(bytes.For(LeaseEvent(1), "i3")[0], 1).lease().capability(), "");
}

}  // namespace
}  // namespace swiftcache::broker::rpc
