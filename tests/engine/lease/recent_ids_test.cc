// SPDX-License-Identifier: Apache-2.0
#include "engine/lease/recent_ids.h"

#include <gtest/gtest.h>

namespace swiftcache::engine::lease {
namespace {

TEST(RecentIdsTest, TheOldestIsForgottenFirst) {
  RecentIds ids(2);
  for (int64_t id : {1, 2, 3}) ids.Add(kv::LeaseId(id));
  EXPECT_FALSE(ids.Contains(kv::LeaseId(1)));
  EXPECT_TRUE(ids.Contains(kv::LeaseId(2)));
  EXPECT_TRUE(ids.Contains(kv::LeaseId(3)));
}

TEST(RecentIdsTest, AddingTwiceTakesOnePlace) {
  RecentIds ids(2);
  for (int64_t id : {1, 2, 2, 2}) ids.Add(kv::LeaseId(id));
  EXPECT_TRUE(ids.Contains(kv::LeaseId(1)));
}

}  // namespace
}  // namespace swiftcache::engine::lease
