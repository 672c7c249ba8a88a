// SPDX-License-Identifier: Apache-2.0
#include "engine/memory/arena.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/units.h"

namespace swiftcache::engine::memory {
namespace {

using ::testing::HasSubstr;

TEST(ArenaTest, BlocksAreAdjacentWholeAndZero) {
  auto arena = Arena::Create({.bytes = 1000, .block_bytes = 300});
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ(arena->num_blocks(), 3);
  EXPECT_EQ(arena->Address(2) - arena->Address(0), 600);
  EXPECT_TRUE(std::all_of(arena->Address(0), arena->Address(0) + 900, [](std::byte b) { return b == std::byte{0}; }));
}

TEST(ArenaTest, EveryPageIsResidentFromTheStart) {
  const int64_t bytes = 8 * kMiB, page = sysconf(_SC_PAGESIZE);
  auto arena = Arena::Create({.bytes = bytes, .block_bytes = 4096});
  ASSERT_TRUE(arena.ok()) << arena.status();
  std::vector<unsigned char> resident(bytes / page);
  ASSERT_EQ(mincore(arena->Address(0), bytes, resident.data()), 0);
  EXPECT_EQ(std::count_if(resident.begin(), resident.end(), [](unsigned char r) { return r & 1; }), bytes / page);
}

TEST(ArenaTest, MovingKeepsTheAddresses) {
  auto arena = Arena::Create({.bytes = 4096, .block_bytes = 64});
  ASSERT_TRUE(arena.ok());
  std::byte* const address = arena->Address(5);
  const Arena moved = std::move(*arena);
  EXPECT_EQ(moved.Address(5), address);
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

TEST(SharedArenaTest, ChunksCoverItWithoutGapsAndShowItsBytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  auto arena = Arena::Create({.bytes = 10 * 13824, .block_bytes = 13824, .shared = true, .chunk_bytes = 4 * page});
  ASSERT_TRUE(arena.ok()) << arena.status();
  for (int i = 0; i < 10; ++i) std::memset(arena->Address(i), i + 1, 13824);
  std::string seen;
  for (const ArenaChunk& chunk : arena->chunks()) {
    ASSERT_EQ(chunk.offset, static_cast<int64_t>(seen.size()));
    void* const view = mmap(nullptr, chunk.bytes, PROT_READ, MAP_SHARED, chunk.fd, 0);
    ASSERT_NE(view, MAP_FAILED);
    seen.append(static_cast<char*>(view), chunk.bytes);
    munmap(view, chunk.bytes);
  }
  EXPECT_EQ(arena->chunks().size(), 9);  // of 34 pages
  EXPECT_EQ(static_cast<int64_t>(seen.size()), arena->mapped_bytes());
  EXPECT_EQ(arena->mapped_bytes(), 34 * page);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(seen.substr(i * 13824, 13824), std::string(13824, i + 1)) << i;
}

TEST(SharedArenaTest, NobodyElseCanWriteShrinkOrPunchAChunk) {
  auto arena = Arena::Create({.bytes = kMiB, .block_bytes = 4096, .shared = true});
  ASSERT_TRUE(arena.ok()) << arena.status();
  const int fd = arena->chunks()[0].fd;
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  void* const view = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(view, MAP_FAILED);
  EXPECT_NE(mprotect(view, 4096, PROT_READ | PROT_WRITE), 0);
  munmap(view, 4096);
  // The file's owner may open it for writing again; the seal stands.
  const UniqueFd writable(open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(writable.ok());
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, writable.get(), 0), MAP_FAILED);
  EXPECT_EQ(write(writable.get(), "x", 1), -1);
  EXPECT_NE(ftruncate(writable.get(), 0), 0);
  EXPECT_NE(fallocate(writable.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
}

TEST(SharedArenaTest, EveryPageIsResidentFromTheStart) {
  const int64_t bytes = 8 * kMiB, page = sysconf(_SC_PAGESIZE);
  auto arena = Arena::Create({.bytes = bytes, .block_bytes = 4096, .shared = true, .chunk_bytes = kMiB});
  ASSERT_TRUE(arena.ok()) << arena.status();
  std::vector<unsigned char> resident(bytes / page);
  ASSERT_EQ(mincore(arena->base(), bytes, resident.data()), 0);
  EXPECT_EQ(std::count_if(resident.begin(), resident.end(), [](unsigned char r) { return r & 1; }), bytes / page);
}

TEST(SharedArenaTest, ChunksGrowWhereThereWouldBeTooManyOfThem) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  auto arena = Arena::Create({.bytes = 8 * kMiB, .block_bytes = 4096, .shared = true, .chunk_bytes = page});
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_LE(static_cast<int64_t>(arena->chunks().size()), Arena::kMaxChunks);
  EXPECT_EQ(arena->chunks().back().offset + arena->chunks().back().bytes, 8 * kMiB);
}

// The kernel refuses while memory is taken, as it does where a control group or a file system is full.
TEST(SharedArenaTest, WhatTheKernelRefusesIsAnErrorWithTheRemedy) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {kMiB, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = Arena::Create({.bytes = 4 * kMiB, .block_bytes = 4096, .shared = true}).status();
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--kv_cache_bytes wants 4194304 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("lower --kv_cache_bytes"));
}

TEST(SharedArenaTest, MoreThanThereIsIsRefusedBeforeItIsTaken) {
  const absl::Status status = Arena::Create({.bytes = int64_t{1} << 50, .block_bytes = kMiB, .shared = true}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

TEST(SharedArenaTest, NothingIsLeftOfIt) {
  const auto descriptors = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); };
  const auto before = descriptors();
  { auto arena = Arena::Create({.bytes = 8 * kMiB, .block_bytes = 4096, .shared = true, .chunk_bytes = kMiB}); }
  EXPECT_EQ(descriptors(), before);
}

// Of its parts one is shown; memory beside it is not in the file.
class ShownPartTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBytes = 8 * kMiB, kAt = 3 * kMiB + 4096, kShown = 2 * kMiB + 8192;

  ShownPartTest()
      : meminfo_(std::filesystem::temp_directory_path() / ("swiftcache-arena-" + std::to_string(getpid()))) {
    SetAvailable(kBytes);
    arena_ = std::make_unique<Arena>(
        Arena::Create({.bytes = kBytes, .block_bytes = 4096, .memory = {meminfo_, "/nonexistent", "/nonexistent"}})
            .value());
    std::memset(arena_->base(), 'o', kBytes);
  }
  ~ShownPartTest() override { std::filesystem::remove(meminfo_); }

  void SetAvailable(int64_t bytes) const { std::ofstream(meminfo_) << "MemAvailable: " << bytes / kKiB << " kB\n"; }
  UniqueFd Show() {
    auto fd = arena_->Show(kAt, kShown);
    EXPECT_TRUE(fd.ok()) << fd.status();
    return fd.ok() ? *std::move(fd) : UniqueFd();
  }
  std::string Read(int fd) const {
    std::string bytes(kShown + 1, '?');
    bytes.resize(std::max<ssize_t>(0, pread(fd, bytes.data(), bytes.size(), 0)));
    return bytes;
  }
  std::string Part() const { return {reinterpret_cast<char*>(arena_->base()) + kAt, kShown}; }
  void ExpectTheRestIsAsItWas() const {
    const char* const base = reinterpret_cast<char*>(arena_->base());
    EXPECT_EQ(std::string(base, kAt), std::string(kAt, 'o'));
    EXPECT_EQ(std::string(base + kAt + kShown, kBytes - kAt - kShown), std::string(kBytes - kAt - kShown, 'o'));
  }
  void ExpectEveryPageIsThere() const {
    const int64_t page = sysconf(_SC_PAGESIZE);
    std::vector<unsigned char> resident(kBytes / page);
    ASSERT_EQ(mincore(arena_->base(), kBytes, resident.data()), 0);
    EXPECT_EQ(std::count_if(resident.begin(), resident.end(), [](unsigned char r) { return r & 1; }), kBytes / page);
  }

  const std::string meminfo_;
  std::unique_ptr<Arena> arena_;
};

TEST_F(ShownPartTest, ItsFileIsThePartAndNothingElse) {
  const UniqueFd fd = Show();
  EXPECT_EQ(Read(fd.get()), std::string(kShown, '\0'));
  std::memset(arena_->base() + kAt, 's', kShown);
  EXPECT_EQ(Read(fd.get()), std::string(kShown, 's'));
  ExpectTheRestIsAsItWas();
  ExpectEveryPageIsThere();
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
}

TEST_F(ShownPartTest, OnceRenewedItIsOtherMemory) {
  const UniqueFd fd = Show();
  std::memset(arena_->base() + kAt, 's', kShown);
  ASSERT_EQ(arena_->Renew(kAt, kShown), absl::OkStatus());
  EXPECT_EQ(Part(), std::string(kShown, '\0'));
  ExpectEveryPageIsThere();
  std::memset(arena_->base() + kAt, 'n', kShown);
  EXPECT_EQ(Read(fd.get()), std::string(kShown, 's')) << "who was shown it sees what was there";
  ExpectTheRestIsAsItWas();
  const UniqueFd again = Show();
  EXPECT_EQ(Read(again.get()), std::string(kShown, '\0'));
}

TEST_F(ShownPartTest, WhereThereIsNoMemoryItIsRefusedUntilThereIs) {
  const UniqueFd fd = Show();
  std::memset(arena_->base() + kAt, 's', kShown);
  SetAvailable(kShown / 2);
  const absl::Status refused = arena_->Renew(kAt, kShown);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(meminfo_));
  SetAvailable(kShown);
  ASSERT_EQ(arena_->Renew(kAt, kShown), absl::OkStatus());
  EXPECT_EQ(Part(), std::string(kShown, '\0'));
  ExpectTheRestIsAsItWas();
  ExpectEveryPageIsThere();
}

}  // namespace
}  // namespace swiftcache::engine::memory
