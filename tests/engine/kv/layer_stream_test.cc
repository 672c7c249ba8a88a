// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/layer_stream.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <utility>
#include <vector>

#include "engine/backend/kv_layout.h"

namespace swiftcache::engine::kv {
namespace {

TEST(LayerStreamTest, ThePapersExample) {
  const LayerStreamSizes sizes = DivideSlices(/*own_slices=*/100, 9 + 8, /*slots_per_block=*/1, /*num_layers=*/10);
  EXPECT_EQ(sizes.lsc_slots, 17);
  EXPECT_EQ(sizes.rc_blocks, 8);
  EXPECT_EQ(sizes.lsc_slots + sizes.rc_blocks, 25) << "blocks of the longest sequence";
  EXPECT_EQ(DivideSlices(100, 0, 1, 10).rc_blocks, 10) << "a conventional system";
}

TEST(LayerStreamTest, TheSliceOfABlockHoldsKAndVOfItsTokensInOneLayer) {
  const backend::KvLayout layout{.num_layers = 30, .num_kv_heads = 3, .head_dim = 64, .block_tokens = 16};
  EXPECT_EQ(layout.slice_bytes(), 2 * 16 * 3 * 64 * 2);
  EXPECT_EQ(layout.block_bytes(), 30 * layout.slice_bytes());
}

TEST(LayerStreamTest, LeasesOfMoreThanTheOwnMemoryStreamsLeaveNoRegularCache) {
  const LayerStreamSizes sizes = DivideSlices(100, 70 + 31, 1, 10);
  EXPECT_EQ(sizes.lsc_slots, 100);
  EXPECT_EQ(sizes.rc_blocks, 0);
}

TEST(LayerStreamTest, ThePapersExampleWithTwoSlotsAStreamedBlock) {
  EXPECT_EQ(StreamBlocksFor(/*own_blocks=*/10, 9 + 8, /*num_layers=*/10), 4);  // 34 slots
  EXPECT_EQ(StreamBlocksFor(10, 25, 10), 5);
  EXPECT_EQ(StreamBlocksFor(10, 26, 10), 5) << "half of the own memory is kept";
}

TEST(LayerStreamTest, ReservesTheFewestBlocksThroughWhichAllLeasedOnesStream) {
  for (int64_t num_layers = 1; num_layers <= 7; ++num_layers) {
    for (int64_t own = 0; own <= 9; ++own) {
      for (int64_t leased = 0; leased <= 40; ++leased) {
        const int64_t blocks = StreamBlocksFor(own, leased, num_layers);
        const auto streams = [&](int64_t reserved) {
          return LayerSlots(std::vector<int32_t>(reserved, 0), num_layers).capacity();
        };
        ASSERT_GE(blocks, 0);
        ASSERT_LE(blocks, own / 2);
        EXPECT_TRUE(blocks == own / 2 || streams(blocks) >= leased);
        EXPECT_TRUE(blocks == 0 || streams(blocks - 1) < leased);
      }
    }
  }
}

TEST(LayerSlotsTest, SequencesThatShareABlockShareItsStream) {
  LayerSlots slots(std::array<int32_t, 1>{5}, 4);
  EXPECT_EQ(slots.capacity(), 2);
  EXPECT_EQ(slots.Assign(BlockId(7)), 0);
  EXPECT_EQ(slots.Assign(BlockId(9)), 1);
  EXPECT_EQ(slots.Assign(BlockId(7)), 0);
  EXPECT_EQ(slots.Assign(BlockId(8)), std::nullopt);
  slots.Clear();
  EXPECT_EQ(slots.Assign(BlockId(8)), 0);
}

TEST(LayerSlotsTest, NoSlotHoldsTwoThingsThatAreNeededAtOnce) {
  for (int64_t num_layers : {1, 2, 3, 30}) {
    LayerSlots slots(std::array<int32_t, 3>{4, 2, 9}, num_layers);
    for (int64_t layer = 0; layer + 1 < num_layers; ++layer) {
      std::set<std::pair<int32_t, int64_t>> taken;
      for (int64_t stream = 0; stream < slots.capacity(); ++stream) {
        for (int64_t l : {layer, layer + 1}) {
          const LayerSlots::Slot slot = slots.At(stream, l);
          EXPECT_LT(slot.slice, num_layers);
          EXPECT_TRUE(taken.insert({slot.place, slot.slice}).second);
        }
      }
      EXPECT_LE(static_cast<int64_t>(taken.size()), 3 * num_layers);
    }
  }
}

}  // namespace
}  // namespace swiftcache::engine::kv
