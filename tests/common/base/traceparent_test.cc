// SPDX-License-Identifier: Apache-2.0
#include "common/base/traceparent.h"

#include <gtest/gtest.h>

#include <string>

namespace swiftcache {
namespace {

const std::string kTrace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceparentTest, TheStandardsFormIsTakenAsItIs) {
  EXPECT_EQ(ParseTraceparent(kTrace), kTrace);
  EXPECT_EQ(ParseTraceparent("cc" + kTrace.substr(2)), "cc" + kTrace.substr(2)) << "a later version of the same form";
}

TEST(TraceparentTest, AnythingElseIsAbsent) {
  std::string tab = kTrace, high = kTrace, upper = kTrace, dash = kTrace, null = kTrace;
  tab[10] = '\t', high[10] = '\x80', upper[10] = 'A', dash[2] = '0', null[10] = '\0';
  for (const std::string& bad :
       {tab, high, upper, dash, null, std::string(), kTrace.substr(1), kTrace + "-", kTrace + "\n", " " + kTrace,
        std::string(20000, '0'), "ff" + kTrace.substr(2), "00-" + std::string(32, '0') + "-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-" + std::string(16, '0') + "-01"}) {
    EXPECT_EQ(ParseTraceparent(bad), "") << bad;
  }
}

}  // namespace
}  // namespace swiftcache
