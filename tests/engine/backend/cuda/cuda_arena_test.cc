// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/cuda_arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "tests/engine/backend/cuda/cuda_harness.h"
#include "tests/fakes/gate.h"

namespace swiftcache::engine::backend::cuda {
namespace {

constexpr CudaArena::Options kShared = {
    .bytes = 10 * kUnit, .block_bytes = 48 * kKiB, .shared = true, .chunk_bytes = 3 * kUnit};

TEST(CudaArenaTest, ItIsWholeChunksAndZeroed) {
  FakeCudaDriver driver;
  {
    const auto arena = MakeArena(driver, kShared);
    EXPECT_EQ(arena->num_blocks(), 13);
    EXPECT_EQ(arena->mapped_bytes(), 10 * kUnit);
    ASSERT_EQ(arena->chunks().size(), 4u);
    EXPECT_EQ(arena->chunks()[3].offset, 9 * kUnit);
    EXPECT_EQ(arena->chunks()[3].bytes, kUnit);
    EXPECT_TRUE(AllAre(FakeCudaDriver::Host(arena->base()), arena->mapped_bytes(), std::byte{0}));
  }
  ExpectClean(driver);
}

TEST(CudaArenaTest, NeverHasMoreChunksThanOneMessageCarries) {
  FakeCudaDriver driver;
  const auto arena = MakeArena(driver, {.bytes = 500 * kUnit, .block_bytes = kUnit, .chunk_bytes = 1});
  EXPECT_EQ(arena->chunks().size(), 167u);  // of three units each
  EXPECT_EQ(arena->chunks().front().bytes, 3 * kUnit);
}

TEST(CudaArenaTest, RefusesWhatCannotBe) {
  FakeCudaDriver small({.total_bytes = 4 * kUnit}), silent({.exports = false});
  EXPECT_EQ(CudaArena::Create({.bytes = 10, .block_bytes = 11}, small).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CudaArena::Create({.bytes = 1ll << 40, .block_bytes = 1}, small).status().code(),
            absl::StatusCode::kInvalidArgument);
  const absl::Status too_much = CudaArena::Create(kShared, small).status();
  EXPECT_EQ(too_much.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(too_much.message().find("--kv_cache_bytes wants 655360 bytes of fake GPU"), std::string::npos) << too_much;
  EXPECT_EQ(CudaArena::Create(kShared, silent).status().code(), absl::StatusCode::kFailedPrecondition);
  ExpectClean(small);
  ExpectClean(silent);
}

TEST(CudaArenaTest, AnExportedChunkIsTheArenasMemory) {
  FakeCudaDriver donor, borrower;
  {
    const auto arena = MakeArena(donor, kShared);
    std::memset(FakeCudaDriver::Host(arena->base()) + 3 * kUnit, 7, 3 * kUnit);
    const auto fd = arena->Export(1);
    ASSERT_TRUE(fd.ok()) << fd.status();
    const Allocation chunk = borrower.Import(fd->get()).value();
    const uint64_t address = borrower.ReserveAddresses(3 * kUnit).value();
    ASSERT_TRUE(borrower.Map(address, 3 * kUnit, chunk, Access::kRead).ok());
    EXPECT_TRUE(AllAre(FakeCudaDriver::Host(address), 3 * kUnit, std::byte{7}));
    std::memset(FakeCudaDriver::Host(arena->base()) + 3 * kUnit, 8, 1);
    EXPECT_EQ(*FakeCudaDriver::Host(address), std::byte{8});
    EXPECT_TRUE(borrower.Unmap(address, 3 * kUnit).ok());
    EXPECT_TRUE(borrower.Release(chunk).ok());
    EXPECT_TRUE(borrower.FreeAddresses(address, 3 * kUnit).ok());
  }
  ExpectClean(donor);
  ExpectClean(borrower);
}

TEST(CudaArenaTest, ARemappedChunkIsFreshAndWhoeverMappedItSeesNoMoreOfTheArena) {
  FakeCudaDriver donor, borrower;
  {
    const auto arena = MakeArena(donor, kShared);
    std::byte* const own = FakeCudaDriver::Host(arena->base());
    std::memset(own, 7, arena->mapped_bytes());
    const auto fd = arena->Export(1);
    const Allocation chunk = borrower.Import(fd->get()).value();
    const uint64_t address = borrower.ReserveAddresses(3 * kUnit).value();
    ASSERT_TRUE(borrower.Map(address, 3 * kUnit, chunk, Access::kRead).ok());

    EXPECT_TRUE(arena->Remap(1).ok());
    EXPECT_TRUE(AllAre(own + 3 * kUnit, 3 * kUnit, std::byte{0}));
    EXPECT_TRUE(AllAre(own, 3 * kUnit, std::byte{7}));
    EXPECT_TRUE(AllAre(own + 6 * kUnit, 4 * kUnit, std::byte{7}));
    std::memset(own + 3 * kUnit, 9, 3 * kUnit);
    EXPECT_TRUE(AllAre(FakeCudaDriver::Host(address), 3 * kUnit, std::byte{7}));
    EXPECT_TRUE(arena->Export(1).ok());

    EXPECT_TRUE(borrower.Unmap(address, 3 * kUnit).ok());
    EXPECT_TRUE(borrower.Release(chunk).ok());
    EXPECT_TRUE(borrower.FreeAddresses(address, 3 * kUnit).ok());
  }
  ExpectClean(donor);
  ExpectClean(borrower);
}

// Unmapping waits where the test wants it to.
class GatedDriver final : public FakeCudaDriver {
 public:
  absl::Status Unmap(uint64_t address, int64_t bytes) override {
    gate.Pass();
    return FakeCudaDriver::Unmap(address, bytes);
  }
  Gate gate;
};

// The thread that hears the sockets exports, and must answer in time.
TEST(CudaArenaTest, WhileAChunkIsExchangedAnyIsExported) {
  GatedDriver driver;
  {
    const auto arena = MakeArena(driver, kShared);
    driver.gate.Close();
    std::thread remaps([&] { EXPECT_TRUE(arena->Remap(1).ok()); });
    EXPECT_TRUE(driver.gate.WaitUntilSomebodyHangs());
    absl::Notification exported;
    std::thread exports([&] {
      EXPECT_TRUE(arena->Export(0).ok());
      EXPECT_TRUE(arena->Export(1).ok()) << "what it was";
      exported.Notify();
    });
    EXPECT_TRUE(exported.WaitForNotificationWithTimeout(absl::Seconds(10)));
    driver.gate.Open();
    remaps.join();
    exports.join();
  }
  ExpectClean(driver);
}

TEST(CudaArenaTest, RemapWithoutMemoryChangesNothing) {
  FakeCudaDriver driver({.total_bytes = 11 * kUnit});
  const auto arena = MakeArena(driver, kShared);
  std::memset(FakeCudaDriver::Host(arena->base()), 7, arena->mapped_bytes());
  EXPECT_EQ(arena->Remap(0).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(AllAre(FakeCudaDriver::Host(arena->base()), arena->mapped_bytes(), std::byte{7}));
  EXPECT_TRUE(arena->Remap(3).ok());  // of one unit
}

TEST(CudaArenaTest, WhateverCallFailsWhileItIsMadeNothingIsLeft) {
  for (int64_t nth = 1;; ++nth) {
    FakeCudaDriver driver;
    driver.FailAt(nth);
    const auto arena = CudaArena::Create(kShared, driver);
    if (!driver.HasFailed()) {
      EXPECT_TRUE(arena.ok()) << arena.status();
      EXPECT_GT(nth, 10);
      return;
    }
    EXPECT_EQ(arena.status().code(), absl::StatusCode::kInternal) << "call " << nth;
    ExpectClean(driver);
  }
}

TEST(CudaArenaTest, WhateverCallFailsWhileAChunkIsRemappedItSaysWhetherTheChunkIsThere) {
  int lost = 0;
  for (int64_t nth = 1;; ++nth) {
    FakeCudaDriver driver;
    {
      const auto arena = MakeArena(driver, kShared);
      std::byte* const chunk = FakeCudaDriver::Host(arena->base()) + 3 * kUnit;
      std::memset(chunk, 7, 3 * kUnit);
      driver.FailAt(nth);
      const absl::Status remapped = arena->Remap(1);
      if (!driver.HasFailed()) break;
      driver.FailAt(0);
      if (remapped.ok()) {  // it was the old memory's release
        EXPECT_TRUE(AllAre(chunk, 3 * kUnit, std::byte{0}));
      } else if (absl::IsDataLoss(remapped)) {
        ++lost;
        EXPECT_TRUE(arena->Remap(1).ok());
        EXPECT_TRUE(AllAre(chunk, 3 * kUnit, std::byte{0}));
      } else {
        EXPECT_EQ(remapped.code(), absl::StatusCode::kInternal);
        EXPECT_TRUE(AllAre(chunk, 3 * kUnit, std::byte{7}));
      }
    }
    ExpectClean(driver);
  }
  EXPECT_GE(lost, 4);
}

}  // namespace
}  // namespace swiftcache::engine::backend::cuda
