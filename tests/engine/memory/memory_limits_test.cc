// SPDX-License-Identifier: Apache-2.0
#include "engine/memory/memory_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "tests/fakes/temp_folder.h"

namespace swiftcache::engine::memory {
namespace {

using ::testing::EndsWith;
namespace fs = std::filesystem;

class MemoryLimitsTest : public ::testing::Test {
 protected:
  MemoryLimitsTest() {
    sources_ = {Path("meminfo"), Path("self_cgroup"), Path("cgroup")};
    Write("meminfo", "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    800 kB\n");
  }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  void Write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }

  const TempFolder temp_folder_;
  const fs::path folder_ = temp_folder_.path();
  MemorySources sources_;
};

TEST_F(MemoryLimitsTest, WithoutGroupsMemAvailableIsTheLimit) {
  const MemoryHeadroom room = ReadMemoryHeadroom(sources_);
  EXPECT_EQ(room.bytes, 800 * 1024);
  EXPECT_EQ(room.limited_by, sources_.meminfo);
}

TEST_F(MemoryLimitsTest, NothingReadableIsNoLimit) {
  EXPECT_EQ(ReadMemoryHeadroom({"/nonexistent", "/nonexistent", "/nonexistent"}).bytes,
            std::numeric_limits<int64_t>::max());
}

TEST_F(MemoryLimitsTest, Version2CountsInactivePageCacheAsAvailable) {
  Write("self_cgroup", "0::/a/b\n");
  Write("cgroup/a/b/memory.max", "500000\n");
  Write("cgroup/a/b/memory.current", "300000\n");
  Write("cgroup/a/b/memory.stat", "anon 1\ninactive_file 50000\nactive_file 7\n");
  const MemoryHeadroom room = ReadMemoryHeadroom(sources_);
  EXPECT_EQ(room.bytes, 250000);
  EXPECT_THAT(room.limited_by, EndsWith("cgroup/a/b/memory.max"));
}

TEST_F(MemoryLimitsTest, TheTightestAncestorLimits) {
  Write("self_cgroup", "0::/a/b\n");
  Write("cgroup/a/b/memory.max", "max\n");
  Write("cgroup/a/b/memory.current", "10\n");
  Write("cgroup/a/memory.max", "1000\n");
  Write("cgroup/a/memory.current", "400\n");
  EXPECT_EQ(ReadMemoryHeadroom(sources_).bytes, 600);
}

TEST_F(MemoryLimitsTest, APathOfTheHostFallsBackToTheContainersRoot) {
  Write("self_cgroup", "0::/kubepods/pod7/container9\n");
  Write("cgroup/memory.max", "2000\n");
  Write("cgroup/memory.current", "500\n");
  EXPECT_EQ(ReadMemoryHeadroom(sources_).bytes, 1500);
}

TEST_F(MemoryLimitsTest, Version1IsReadBelowItsOwnController) {
  Write("self_cgroup", "12:cpu,cpuacct:/x\n5:memory:/docker/9\n1:name=systemd:/x\n");
  Write("cgroup/memory/docker/9/memory.limit_in_bytes", "700000\n");
  Write("cgroup/memory/docker/9/memory.usage_in_bytes", "100000\n");
  Write("cgroup/memory/docker/9/memory.stat", "inactive_file 5\ntotal_inactive_file 20000\n");
  EXPECT_EQ(ReadMemoryHeadroom(sources_).bytes, 620000);
}

TEST_F(MemoryLimitsTest, UsageAboveTheLimitLeavesNothing) {
  Write("self_cgroup", "0::/\n");
  Write("cgroup/memory.max", "100\n");
  Write("cgroup/memory.current", "200\n");
  EXPECT_EQ(ReadMemoryHeadroom(sources_).bytes, 0);
}

}  // namespace
}  // namespace swiftcache::engine::memory
