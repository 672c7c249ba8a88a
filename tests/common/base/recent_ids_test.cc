// SPDX-License-Identifier: Apache-2.0
#include "common/base/recent_ids.h"

#include <gtest/gtest.h>

namespace swiftcache {
namespace {

TEST(RecentIdsTest, TheOldestIsForgottenFirst) {
  RecentIds<int> ids(2);
  for (const int id : {1, 2, 3}) ids.Add(id);
  EXPECT_FALSE(ids.Contains(1));
  EXPECT_TRUE(ids.Contains(2));
  EXPECT_TRUE(ids.Contains(3));
}

TEST(RecentIdsTest, AddingTwiceTakesOnePlace) {
  RecentIds<int> ids(2);
  for (const int id : {1, 2, 2, 2}) ids.Add(id);
  EXPECT_TRUE(ids.Contains(1));
}

}  // namespace
}  // namespace swiftcache
