// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/layer_stream.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace swiftcache::engine::kv {
namespace {

TEST(LayerStreamTest, ThePapersExample) {
  const LayerStreamSizes sizes = SizeLayerStream(100, std::array<int64_t, 2>{9, 8}, 10);
  EXPECT_EQ(sizes.lsc_slots, 17);
  EXPECT_EQ(sizes.rc_blocks, 8);
  EXPECT_EQ(sizes.max_blocks(), 25);
  const LayerStreamSizes alone = SizeLayerStream(100, {}, 10);
  EXPECT_EQ(alone.max_blocks(), 10) << "a conventional system";
}

TEST(LayerStreamTest, WorkersWithMoreThanTheOwnMemoryStreamsLeaveNoRegularCache) {
  const LayerStreamSizes sizes = SizeLayerStream(100, std::array<int64_t, 2>{70, 31}, 10);
  EXPECT_EQ(sizes.lsc_slots, 100);
  EXPECT_EQ(sizes.rc_blocks, 0);
}

TEST(LayerStreamTest, BytesBecomeBlocksRoundedDown) {
  const int64_t slice = SliceBytes(/*block_tokens=*/16, /*kv_heads=*/3, /*head_dim=*/64, /*element_bytes=*/2);
  EXPECT_EQ(slice, 2 * 16 * 3 * 64 * 2);
  EXPECT_EQ(FullLayerBlocks(30 * slice - 1, slice, 10), 2);
  EXPECT_EQ(SingleLayerBlocks(30 * slice - 1, slice), 29);
}

TEST(LayerStreamTest, TwoSlotsAStreamedBlock) {
  EXPECT_EQ(StreamBlocksFor(17, 10), 4);
  EXPECT_EQ(MaxStreamedBlocks(10, 6, 10), 20);
  EXPECT_EQ(StreamBlocksFor(MaxStreamedBlocks(10, 6, 10), 10), 4);
  EXPECT_EQ(MaxStreamedBlocks(4, 6, 10), 0);
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
