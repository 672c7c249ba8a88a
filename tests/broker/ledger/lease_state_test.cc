// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/lease_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace swiftcache::broker::ledger {
namespace {

using ::testing::HasSubstr;
using S = LeaseState;

constexpr S kAll[] = {S::kOffered, S::kGranted, S::kRevoking, S::kReleased, S::kFenced};

TEST(LeaseStateTest, OnlyTheStepsOfTheTableAreLegalAndAllOthersAreRefusedByName) {
  const std::set<std::pair<S, S>> legal = {{S::kOffered, S::kGranted},   {S::kOffered, S::kRevoking},
                                           {S::kOffered, S::kReleased},  {S::kGranted, S::kRevoking},
                                           {S::kGranted, S::kReleased},  {S::kGranted, S::kFenced},
                                           {S::kRevoking, S::kReleased}, {S::kRevoking, S::kFenced}};
  for (const S from : kAll) {
    for (const S to : kAll) {
      const absl::Status status = CheckStep(9, from, to);
      if (legal.count({from, to}) > 0) {
        EXPECT_TRUE(status.ok()) << status;
        continue;
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(status.message()), HasSubstr("lease 9"));
      EXPECT_THAT(std::string(status.message()), HasSubstr(StateName(from)));
      EXPECT_THAT(std::string(status.message()), HasSubstr(StateName(to)));
    }
  }
}

TEST(LeaseStateTest, NothingFollowsAnEnd) {
  for (const S state : kAll) EXPECT_EQ(HasEnded(state), state == S::kReleased || state == S::kFenced);
}

}  // namespace
}  // namespace swiftcache::broker::ledger
