// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/copy_lane.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "tests/engine/backend/cuda/cuda_harness.h"

namespace swiftcache::engine::backend::cuda {
namespace {

struct Board {
  explicit Board(FakeCudaDriver& driver) : arena(MakeArena(driver, {.bytes = 4 * kUnit, .block_bytes = kUnit})) {
    std::memset(Bytes(0), 7, kUnit);
  }
  uint64_t At(int64_t unit) const { return ToNumber(arena->base()) + unit * kUnit; }
  std::byte* Bytes(int64_t unit) const { return FakeCudaDriver::Host(At(unit)); }
  CopyLane::Copies Move(int64_t from, int64_t to) const {
    return {.runs = {{.to = At(to), .from = At(from), .bytes = kUnit}}};
  }
  std::unique_ptr<CudaArena> arena;
};

TEST(CopyLaneTest, CopiesInOrderAndByRows) {
  FakeCudaDriver driver;
  {
    const Board board(driver);
    CopyLane lane(driver);
    ASSERT_TRUE(lane.Begin(board.Move(0, 1), {}).ok());
    const CopyLane::Copies rows = {
        .grids = {
            {.to = board.At(2), .from = board.At(1), .to_stride = 512, .from_stride = 256, .bytes = 256, .rows = 128}}};
    ASSERT_TRUE(lane.Run(rows, {}).ok());
    for (int row = 0; row < 128; ++row) {
      EXPECT_TRUE(AllAre(board.Bytes(2) + 512 * row, 256, std::byte{7}));
      EXPECT_TRUE(AllAre(board.Bytes(2) + 512 * row + 256, 256, std::byte{0}));
    }
  }
  ExpectClean(driver);
}

TEST(CopyLaneTest, WaitsForAnotherLaneOfTheDevice) {
  FakeCudaDriver driver({.most_late_us = 2000});
  {
    const Board board(driver);
    CopyLane first(driver), second(driver);
    const auto copied = first.Begin(board.Move(0, 1), {});
    ASSERT_TRUE(copied.ok());
    ASSERT_TRUE(second.Run(board.Move(1, 2), Fence(*copied)).ok());
    EXPECT_TRUE(AllAre(board.Bytes(2), kUnit, std::byte{7}));
  }
  ExpectClean(driver);
}

TEST(CopyLaneTest, CopiesNothingBehindWorkThatFailed) {
  FakeCudaDriver driver;
  {
    const Board board(driver);
    CopyLane lane(driver);
    const Fence failed(EventFence::Create(driver).value());
    FakeCudaDriver other;
    CopyLane elsewhere(other);
    EXPECT_EQ(elsewhere.Begin(board.Move(0, 1), failed).status().code(), absl::StatusCode::kAborted);
    EXPECT_EQ(lane.Begin(board.Move(0, 1), failed).status().code(), absl::StatusCode::kAborted);
    EXPECT_EQ(driver.runs_copied() + other.runs_copied(), 0);
    EXPECT_TRUE(lane.Run(board.Move(0, 1), {}).ok());
  }
  ExpectClean(driver);
}

// Whoever is told of an error may use the memory at once.
TEST(CopyLaneTest, WhateverCallFailsNothingIsUnderWayAfterwards) {
  for (int64_t nth = 1;; ++nth) {
    FakeCudaDriver driver({.most_late_us = 2000});
    {
      const Board board(driver);
      CopyLane lane(driver);
      driver.FailAt(nth);
      const absl::Status run = lane.Run(board.Move(0, 1), {});
      if (!driver.HasFailed()) {
        EXPECT_TRUE(run.ok());
        EXPECT_GE(nth, 6);
        return;
      }
      EXPECT_EQ(run.code(), absl::StatusCode::kInternal) << "call " << nth;
      EXPECT_EQ(driver.unfinished_copies(), 0) << "call " << nth;
      EXPECT_TRUE(lane.Run(board.Move(0, 2), {}).ok());
      EXPECT_TRUE(AllAre(board.Bytes(2), kUnit, std::byte{7}));
    }
    ExpectClean(driver);
  }
}

TEST(CopyLaneTest, OnALostDeviceNothingHangs) {
  FakeCudaDriver driver;
  {
    const Board board(driver);
    CopyLane lane(driver);
    driver.Pause();
    const auto copied = lane.Begin(board.Move(0, 1), {});
    ASSERT_TRUE(copied.ok());
    driver.Lose();
    EXPECT_EQ(lane.Finish(**copied).code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(lane.Run(board.Move(0, 1), {}).code(), absl::StatusCode::kDataLoss);
  }
  ExpectClean(driver);
}

}  // namespace
}  // namespace swiftcache::engine::backend::cuda
