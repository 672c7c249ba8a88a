// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/weight_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace swiftcache::engine::backend {
namespace {

using testing::ElementsAre;

std::vector<int64_t> StoredRows(const WeightSource& source) {
  std::vector<int64_t> rows;
  for (int64_t r = 0; r < source.rows; ++r) rows.push_back(source.StoredRow(r));
  return rows;
}

TEST(WeightSourceTest, PlainRowsAreStoredInOrder) {
  EXPECT_THAT(StoredRows({.rows = 4, .row_order = RowOrder::kPlain}), ElementsAre(0, 1, 2, 3));
}

TEST(WeightSourceTest, RopePairsAreTakenApartHeadByHead) {
  EXPECT_THAT(StoredRows({.rows = 12, .row_order = RowOrder::kRopePairs, .head_dim = 6}),
              ElementsAre(0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11));
  EXPECT_THAT(StoredRows({.rows = 4, .row_order = RowOrder::kRopePairs, .head_dim = 2}), ElementsAre(0, 1, 2, 3));
}

TEST(WeightSourceTest, ARowBeginsItsStoredNumberOfRowsIntoTheData) {
  const std::vector<std::byte> data(8 * 34);
  const WeightSource source{.format = WeightFormat::kQ8_0,
                            .data = data.data(),
                            .rows = 8,
                            .cols = 32,
                            .row_bytes = RowBytes(WeightFormat::kQ8_0, 32),
                            .row_order = RowOrder::kRopePairs,
                            .head_dim = 4};
  EXPECT_EQ(source.Row(5) - data.data(), 6 * 34);
}

}  // namespace
}  // namespace swiftcache::engine::backend
