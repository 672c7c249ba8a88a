// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/status.h"

#include <gtest/gtest.h>

#include <string>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace swiftcache {
namespace {

TEST(StatusTest, CodeAndMessageSurviveTheWay) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "what went wrong");
    const grpc::Status wire = ToGrpc(status);
    EXPECT_EQ(wire.error_code(), code);
    EXPECT_TRUE(wire.error_details().empty());
    EXPECT_EQ(FromGrpc(wire), status);
  }
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
}

TEST(StatusTest, RetryDelayIsAStandardRetryInfoOnTheWire) {
  const absl::Status status = WithRetryDelay(absl::ResourceExhaustedError("queue full"), absl::Milliseconds(1250));
  const grpc::Status wire = ToGrpc(status);
  google::rpc::Status rich;
  ASSERT_TRUE(rich.ParseFromString(wire.error_details()));
  EXPECT_EQ(rich.code(), 8);
  EXPECT_EQ(rich.message(), "queue full");
  ASSERT_EQ(rich.details_size(), 1);
  google::rpc::RetryInfo info;
  ASSERT_TRUE(rich.details(0).UnpackTo(&info));
  EXPECT_EQ(info.retry_delay().seconds(), 1);
  EXPECT_EQ(info.retry_delay().nanos(), 250'000'000);

  const absl::Status back = FromGrpc(wire);
  EXPECT_EQ(back.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryDelayOf(back), absl::Milliseconds(1250));
}

TEST(StatusTest, StatusWithoutRetryInfoHasNoDelay) {
  EXPECT_EQ(RetryDelayOf(absl::ResourceExhaustedError("queue full")), std::nullopt);
  EXPECT_EQ(RetryDelayOf(absl::OkStatus()), std::nullopt);
}

TEST(StatusTest, DetailsThatDoNotParseAreDropped) {
  const absl::Status status = FromGrpc(grpc::Status(grpc::StatusCode::NOT_FOUND, "no such model", "\xff\xff\xff"));
  EXPECT_EQ(status, absl::NotFoundError("no such model"));
}

TEST(StatusTest, MessagesAreValidUtf8OnTheWire) {
  EXPECT_EQ(ToGrpc(absl::InvalidArgumentError("a\xff\xc3\xa9\xc3")).error_message(), "a?\xc3\xa9?");
  EXPECT_EQ(ToGrpc(absl::InvalidArgumentError("\xed\xa0\x80|\xe2\x82\xac|\xf0\x9f\x98\x80")).error_message(),
            "???|\xe2\x82\xac|\xf0\x9f\x98\x80");
  EXPECT_EQ(ToGrpc(absl::InvalidArgumentError("\xe2\x82|\xf0\x9f\x98")).error_message(), "??|???");
}

}  // namespace
}  // namespace swiftcache
