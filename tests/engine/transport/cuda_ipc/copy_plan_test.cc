// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/cuda_ipc/copy_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "tests/fakes/random_seed.h"

namespace swiftcache::engine::transport::cuda_ipc {
namespace {

using backend::cuda::CopyLane;
using backend::cuda::DeviceCopy;
using backend::cuda::DeviceCopy2D;

TEST(CopyPlanTest, WhatIsAdjacentAtBothEndsIsOneRun) {
  const auto copies = PlanCopies(std::vector<DeviceCopy>{{100, 500, 10}, {110, 510, 20}, {130, 531, 5}});
  ASSERT_EQ(copies.runs.size(), 2u);
  EXPECT_EQ(copies.runs[0].bytes, 30);
  EXPECT_EQ(copies.runs[1].from, 531u);
  EXPECT_TRUE(copies.grids.empty());
}

TEST(CopyPlanTest, ALayersSlicesOfAdjacentBlocksAreOneGrid) {
  std::vector<DeviceCopy> slices;
  for (uint64_t block = 0; block < 8; ++block) slices.push_back({1000 + block * 64, 90000 + block * 640, 64});
  const auto copies = PlanCopies(slices);
  EXPECT_TRUE(copies.runs.empty());
  ASSERT_EQ(copies.grids.size(), 1u);
  const DeviceCopy2D& grid = copies.grids[0];
  EXPECT_EQ(grid.to, 1000u);
  EXPECT_EQ(grid.from, 90000u);
  EXPECT_EQ(grid.to_stride, 64);
  EXPECT_EQ(grid.from_stride, 640);
  EXPECT_EQ(grid.bytes, 64);
  EXPECT_EQ(grid.rows, 8);
}

TEST(CopyPlanTest, NothingIsNothing) {
  const auto copies = PlanCopies(std::vector<DeviceCopy>{{100, 500, 0}});
  EXPECT_TRUE(copies.runs.empty() && copies.grids.empty());
  EXPECT_TRUE(PlanCopies({}).runs.empty());
}

TEST(CopyPlanTest, StridesThatNoDeviceTakesAreRuns) {
  constexpr uint64_t kFar = 1ull << 31;
  const auto copies =
      PlanCopies(std::vector<DeviceCopy>{{0, 1, 8}, {8, 1 + kFar, 8}, {16, 1 + 2 * kFar, 8}, {24, 1 + 3 * kFar, 8}});
  EXPECT_EQ(copies.runs.size(), 4u);
  EXPECT_TRUE(copies.grids.empty());
}

// Pieces of a table of slices, some of them missing, of some the order changed: what is copied is what was asked.
TEST(CopyPlanTest, WhateverIsAskedIsCopied) {
  std::mt19937 random(RandomSeed());
  std::vector<std::byte> from(4096);
  for (std::byte& b : from) b = static_cast<std::byte>(random());
  int64_t grids = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<DeviceCopy> pieces;
    const int64_t bytes = 1 + random() % 16, from_stride = bytes + random() % 20, to_stride = bytes + random() % 20;
    for (uint64_t i = 0; i < 60; ++i) {
      if (random() % 8 == 0) continue;
      const uint64_t source = random() % 10 == 0 ? random() % 60 : i;
      pieces.push_back({i * to_stride, source * from_stride, static_cast<int64_t>(random() % 30 == 0 ? 1 : bytes)});
    }
    std::vector<std::byte> wanted(4096), copied(4096);
    for (const DeviceCopy& piece : pieces) std::memcpy(&wanted[piece.to], &from[piece.from], piece.bytes);
    const CopyLane::Copies copies = PlanCopies(pieces);
    for (const DeviceCopy& run : copies.runs) std::memcpy(&copied[run.to], &from[run.from], run.bytes);
    for (const DeviceCopy2D& grid : copies.grids) {
      ASSERT_GE(grid.to_stride, grid.bytes);
      ASSERT_GE(grid.from_stride, grid.bytes);
      for (int64_t row = 0; row < grid.rows; ++row) {
        std::memcpy(&copied[grid.to + row * grid.to_stride], &from[grid.from + row * grid.from_stride], grid.bytes);
      }
    }
    ASSERT_EQ(copied, wanted) << "round " << round;
    grids += static_cast<int64_t>(copies.grids.size());
  }
  EXPECT_GT(grids, 1000);
}

}  // namespace
}  // namespace swiftcache::engine::transport::cuda_ipc
