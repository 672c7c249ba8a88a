// SPDX-License-Identifier: Apache-2.0
#include "common/base/instance_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace swiftcache {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(InstanceTokenTest, AnInstanceIsTheBeginningOfItsTokensHash) {
  EXPECT_EQ(InstanceIdOf("abc"), "ba7816bf8f01cfea414140de5dae2223");  // printf abc | sha256sum
  EXPECT_TRUE(CheckToken(InstanceIdOf("abc"), "abc").ok());
}

TEST(InstanceTokenTest, AnotherTokenIsDeniedAndNotRepeated) {
  for (const std::string token : {"abd", "ba7816bf8f01cfea414140de5dae2223", ""}) {
    const absl::Status status = CheckToken(InstanceIdOf("abc"), token);
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(std::string(status.message()), HasSubstr(InstanceIdOf("abc")));
  }
  EXPECT_THAT(std::string(CheckToken("x", "guessed").message()), Not(HasSubstr("guessed")));
  EXPECT_EQ(CheckToken("", "").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(CheckToken(InstanceIdOf(""), "").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_LT(CheckToken(std::string(100'000, '\n'), "t").message().size(), 1000);
}

}  // namespace
}  // namespace swiftcache
