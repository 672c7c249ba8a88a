// SPDX-License-Identifier: Apache-2.0
#include "services/log_flags.h"

#include <gtest/gtest.h>

#include <vector>

namespace swiftcache::services {
namespace {

LogOptions Parsed(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "test");
  Flags flags("test", "A test.");
  LogFlags log;
  log.Declare(flags);
  EXPECT_EQ(flags.Parse(static_cast<int>(arguments.size()), arguments.data()), std::nullopt);
  return log.Options({.program = "test", .engine = "e", .model = "m"});
}

TEST(LogFlagsTest, TheDefaultIsTextAtInfo) {
  const LogOptions options = Parsed({});
  EXPECT_FALSE(options.json);
  EXPECT_EQ(options.level, LogLevel::kInfo);
  EXPECT_EQ(options.engine, "e");
  EXPECT_EQ(options.model, "m");
}

TEST(LogFlagsTest, EveryLevelHasItsName) {
  for (const LogLevel level : {LogLevel::kError, LogLevel::kWarning, LogLevel::kInfo, LogLevel::kVerbose}) {
    EXPECT_EQ(Parsed({"--log_level", Name(level)}).level, level) << Name(level);
  }
  EXPECT_TRUE(Parsed({"--log_format=json"}).json);
}

}  // namespace
}  // namespace swiftcache::services
