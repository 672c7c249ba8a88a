// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/memory_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>

#include "common/base/units.h"

namespace swiftcache::engine::backend::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

constexpr char kMps[] = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", kHook[] = "CUDA_DEVICE_MEMORY_LIMIT";
constexpr char kUuid[] = "0a1b2c3d4e5f60718293a4b5c6d7e8f9";
constexpr char kOurs[] = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9",
               kOther[] = "GPU-ffffffff-4e5f-6071-8293-a4b5c6d7e8f9";

absl::StatusOr<std::optional<MemoryLimit>> Read(const Variables& variables) {
  return ReadMemoryLimit(
      [&](const char* name) {
        const auto it = variables.find(name);
        return it == variables.end() ? nullptr : it->second.c_str();
      },
      kUuid);
}

// 0: nothing limits.
int64_t BytesOf(const Variables& variables) {
  const auto limit = Read(variables);
  EXPECT_TRUE(limit.ok()) << limit.status();
  return limit.ok() && *limit ? (*limit)->bytes : 0;
}

void ExpectUnreadable(const std::string& name, const std::string& value) {
  const absl::Status status = Read({{name, value}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name << "=" << value;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(name + " is '" + value + "'; wanted "), HasSubstr("correct it, or unset it")));
}

TEST(MemoryLimitTest, WhereNothingIsSetNothingLimits) {
  EXPECT_EQ(BytesOf({}), 0);
  EXPECT_EQ(BytesOf({{kMps, ""}, {kHook, " "}, {"CUDA_DEVICE_MEMORY_LIMIT_0", ""}, {"CUDA_VISIBLE_DEVICES", ""}}), 0);
}

TEST(MemoryLimitTest, MpsLimitsAreOfTheGpuThatTheyNameInMegabytesOrGigabytes) {
  EXPECT_EQ(BytesOf({{kMps, "0=10G"}}), 10 * kGiB);
  EXPECT_EQ(BytesOf({{kMps, "1=1G, 0 = 512MB"}}), 512 * kMiB);
  EXPECT_EQ(BytesOf({{kMps, "1=1G"}}), 0);
  EXPECT_EQ(BytesOf({{kMps, std::string(kOther) + "=1G," + kOurs + "=3g"}}), 3 * kGiB);
  EXPECT_EQ(BytesOf({{kMps, "GPU-0A1B2C3D-4e=2G"}}), 2 * kGiB) << "CUDA takes the beginning of a UUID";
  EXPECT_EQ(BytesOf({{kMps, "MIG-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9=2G"}}), 2 * kGiB);
}

TEST(MemoryLimitTest, AHooksLimitOfTheGpuStandsBeforeThatOfAll) {
  EXPECT_EQ(BytesOf({{kHook, "2g"}}), 2 * kGiB);
  EXPECT_EQ(BytesOf({{kHook, "2g"}, {"CUDA_DEVICE_MEMORY_LIMIT_0", "3000m"}}), 3000 * kMiB);
  EXPECT_EQ(BytesOf({{kHook, "2g"}, {"CUDA_DEVICE_MEMORY_LIMIT_0", "0"}}), 2 * kGiB);
  EXPECT_EQ(BytesOf({{"CUDA_DEVICE_MEMORY_LIMIT_1", "3000m"}}), 0);
  EXPECT_EQ(BytesOf({{kHook, "1048576k"}}), kGiB);
  EXPECT_EQ(BytesOf({{kHook, "1073741824"}}), kGiB);
  EXPECT_EQ(BytesOf({{kHook, "0"}}), 0);
}

TEST(MemoryLimitTest, OfAllThatMayBeMeantTheSmallestLimits) {
  EXPECT_EQ(BytesOf({{kMps, "0=10G"}, {kHook, "9g"}}), 9 * kGiB);
  // The second GPU of the machine is the first of this process.
  EXPECT_EQ(BytesOf({{"CUDA_VISIBLE_DEVICES", "1,2"}, {kMps, "0=10G,1=8G,2=1G"}}), 8 * kGiB);
  EXPECT_EQ(BytesOf({{"CUDA_VISIBLE_DEVICES", "1"}, {"CUDA_DEVICE_MEMORY_LIMIT_1", "5g"}}), 5 * kGiB);
  EXPECT_EQ(BytesOf({{"CUDA_VISIBLE_DEVICES", kOurs}, {"CUDA_DEVICE_MEMORY_LIMIT_7", "5g"}}), 5 * kGiB);
}

TEST(MemoryLimitTest, WhatLimitsIsNamed) {
  EXPECT_EQ((*Read({{"CUDA_DEVICE_MEMORY_LIMIT_0", "3000m"}}))->source, "CUDA_DEVICE_MEMORY_LIMIT_0=3000m");
  EXPECT_EQ((*Read({{kMps, "1=1G,0=512M"}}))->source, std::string(kMps) + "=1=1G,0=512M");
}

TEST(MemoryLimitTest, WhatCannotBeReadIsAnErrorThatNamesItAndSaysWhatIsWanted) {
  for (const char* value : {"10G", "0=", "0=10", "0=0G", "=1G", "0=-1G", "-1=1G", "0=1.5G", "0=1T", "0=G", "0=b",
                            "x=1G", "0=1G,", "0=99999999999G", "0=1G=2G"}) {
    ExpectUnreadable(kMps, value);
  }
  for (const char* value : {"lots", "-1", "3000 m", "1.5g", "g", "b", "3000mm", "99999999999g", "0x10"}) {
    ExpectUnreadable(kHook, value);
    ExpectUnreadable("CUDA_DEVICE_MEMORY_LIMIT_0", value);
  }
}

TEST(MemoryLimitTest, FreeIsWhatTheLimitLeavesOrWhatTheDriverHasIfThatIsLess) {
  const DeviceMemory gpu = {.total_bytes = 80, .free_bytes = 50};
  const MemoryLimit ten = {.bytes = 10, .source = "ten"};
  EXPECT_EQ(Limited(gpu, std::nullopt, 3).free_bytes, 50);
  EXPECT_EQ(Limited(gpu, std::nullopt, 3).limited_by, "");
  const DeviceMemory limited = Limited(gpu, ten, 3);
  EXPECT_EQ(limited.total_bytes, 10);
  EXPECT_EQ(limited.free_bytes, 7);
  EXPECT_EQ(limited.limited_by, "ten");
  EXPECT_EQ(Limited(gpu, ten, 30).free_bytes, 0);
  EXPECT_EQ(Limited({.total_bytes = 80, .free_bytes = 4}, ten, 3).free_bytes, 4) << "others have it";
  EXPECT_EQ(Limited(gpu, MemoryLimit{.bytes = 100, .source = "more than there is"}, 3).limited_by, "");
}

}  // namespace
}  // namespace swiftcache::engine::backend::cuda
