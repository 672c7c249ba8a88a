// SPDX-License-Identifier: Apache-2.0
// Rows that are copied lie where they belong, and nothing beside them changes: a driver may move long rows otherwise.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/copy_lane.h"
#include "engine/backend/cuda/device_memory.h"
#include "tests/fakes/test_gpu.h"

namespace swiftcache::engine::backend::cuda {
namespace {

constexpr int64_t kWord = sizeof(float);

TEST(CopyGridTest, RowsOfAnyLengthAndDistanceLieWhereTheyBelong) {
  const std::unique_ptr<TestGpu> gpu = OpenTestGpu();
  if (gpu == nullptr) GTEST_SKIP() << WhyNoTestGpu();
  constexpr int64_t words = 160'000, first_from = 1024, first_to = 512;
  auto from = DeviceBytes::Allocate(gpu->driver(), words * kWord),
       to = DeviceBytes::Allocate(gpu->driver(), words * kWord);
  ASSERT_TRUE(from.ok() && to.ok());
  CopyLane lane(gpu->driver());
  std::vector<float> source(words), empty(words, -1);
  std::iota(source.begin(), source.end(), 0.0f);
  gpu->Write(ToDeviceAddress(from->address()), source);
  struct Grid {
    int64_t words, to_stride, from_stride, rows;
  };
  for (const Grid& grid : std::initializer_list<Grid>{{64, 64, 192, 100},            // short rows
                                                      {512, 512, 1024, 30},          // as long as a piece
                                                      {8192, 8192, 3 * 8192, 6},     // several pieces
                                                      {16384, 16384, 2 * 16384, 4},  // which are shorter in longer rows
                                                      {2048, 4096, 2560, 30},  // to rows apart, distances of odd pieces
                                                      {2048, 2048, 2050, 30},  // a distance that is no pieces
                                                      {1000, 1024, 1536, 30},  // a length that is none
                                                      {2048, 2048, 2048, 1}}) {
    SCOPED_TRACE(absl::StrCat(grid.rows, " rows of ", grid.words, " words"));
    gpu->Write(ToDeviceAddress(to->address()), empty);
    std::vector<float> wanted = empty;
    for (int64_t row = 0; row < grid.rows; ++row) {
      std::copy_n(source.begin() + first_from + row * grid.from_stride, grid.words,
                  wanted.begin() + first_to + row * grid.to_stride);
    }
    const CopyLane::Copies copies = {.grids = {{.to = to->address() + first_to * kWord,
                                                .from = from->address() + first_from * kWord,
                                                .to_stride = grid.to_stride * kWord,
                                                .from_stride = grid.from_stride * kWord,
                                                .bytes = grid.words * kWord,
                                                .rows = grid.rows}}};
    const absl::Status copied = lane.Run(copies, {});
    ASSERT_TRUE(copied.ok()) << copied;
    EXPECT_EQ(gpu->Read(ToDeviceAddress(to->address()), words), wanted);
  }
}

}  // namespace
}  // namespace swiftcache::engine::backend::cuda
