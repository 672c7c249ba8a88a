// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/units.h"

namespace swiftcache::engine::kv {
namespace {

using ::testing::HasSubstr;

TEST(ArenaTest, BlocksAreAdjacentWholeAndZero) {
  auto arena = Arena::Create({.bytes = 1000, .block_bytes = 300});
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ(arena->num_blocks(), 3);
  EXPECT_EQ(arena->Address(BlockId(2)) - arena->Address(BlockId(0)), 600);
  EXPECT_TRUE(std::all_of(arena->Address(BlockId(0)), arena->Address(BlockId(0)) + 900,
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST(ArenaTest, EveryPageIsResidentFromTheStart) {
  const int64_t bytes = 8 * kMiB, page = sysconf(_SC_PAGESIZE);
  auto arena = Arena::Create({.bytes = bytes, .block_bytes = 4096});
  ASSERT_TRUE(arena.ok()) << arena.status();
  std::vector<unsigned char> resident(bytes / page);
  ASSERT_EQ(mincore(arena->Address(BlockId(0)), bytes, resident.data()), 0);
  EXPECT_EQ(std::count_if(resident.begin(), resident.end(), [](unsigned char r) { return r & 1; }), bytes / page);
}

TEST(ArenaTest, MovingKeepsTheAddresses) {
  auto arena = Arena::Create({.bytes = 4096, .block_bytes = 64});
  ASSERT_TRUE(arena.ok());
  std::byte* const address = arena->Address(BlockId(5));
  const Arena moved = std::move(*arena);
  EXPECT_EQ(moved.Address(BlockId(5)), address);
}

TEST(ArenaTest, LessThanABlockIsRefusedWithTheRemedy) {
  for (int64_t bytes : {int64_t{99}, int64_t{0}, int64_t{-5}}) {
    const absl::Status status = Arena::Create({.bytes = bytes, .block_bytes = 100}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("--kv_cache_bytes"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("100 bytes"));
  }
}

TEST(ArenaTest, MoreThanThereIsIsRefusedBeforeItIsTaken) {
  const int64_t bytes = int64_t{1} << 50;
  const absl::Status status = Arena::Create({.bytes = bytes, .block_bytes = kMiB}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(bytes)));
  EXPECT_THAT(std::string(status.message()), HasSubstr("lower --kv_cache_bytes"));
}

TEST(ArenaTest, MoreThanTheKernelMapsIsRefused) {
  const MemorySources unlimited = {"/nonexistent", "/nonexistent", "/nonexistent"};
  const absl::Status status =
      Arena::Create({.bytes = int64_t{1} << 60, .block_bytes = int64_t{1} << 40, .memory = unlimited}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

TEST(ArenaTest, MoreBlocksThanCanBeNamedAreRefused) {
  const absl::Status status = Arena::Create({.bytes = int64_t{1} << 40, .block_bytes = 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace swiftcache::engine::kv
