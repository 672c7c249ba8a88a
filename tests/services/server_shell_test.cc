// SPDX-License-Identifier: Apache-2.0
#include "services/server_shell.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace swiftcache::services {
namespace {

TEST(HttpConnectionsTest, LeaveAQuarterOfTheFilesToOthers) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 400, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_EQ(HttpConnections(299), 299);
  EXPECT_EQ(HttpConnections(300), 300);
  EXPECT_EQ(HttpConnections(1024), 300);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace swiftcache::services
