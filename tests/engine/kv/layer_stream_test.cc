// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/layer_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "engine/backend/kv_layout.h"

namespace swiftcache::engine::kv {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

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

class LayerSlotsTest : public testing::Test {
 protected:
  // Two blocks at a time.
  LayerSlots slots_{std::array<int32_t, 1>{5}, 4};
  std::optional<int64_t> Number(uint64_t filling) {
    const auto stream = slots_.Assign(Filling(filling));
    return stream ? std::optional(stream->number) : std::nullopt;
  }
  bool FindsFirst(uint64_t filling) { return slots_.Assign(Filling(filling))->first_is_there; }
};

TEST_F(LayerSlotsTest, SequencesThatShareABlockShareItsStream) {
  EXPECT_EQ(slots_.capacity(), 2);
  slots_.Begin();
  EXPECT_EQ(Number(7), 0);
  EXPECT_EQ(Number(9), 1);
  EXPECT_EQ(Number(7), 0);
  EXPECT_EQ(Number(8), std::nullopt);
  slots_.Begin();
  EXPECT_EQ(Number(8), 1);
}

TEST_F(LayerSlotsTest, ABlockIsNewOnceAStep) {
  for (int step = 0; step < 2; ++step) {
    slots_.Begin();
    EXPECT_TRUE(slots_.Assign(Filling(7))->is_new);
    EXPECT_FALSE(slots_.Assign(Filling(7))->is_new);
  }
}

TEST_F(LayerSlotsTest, TheNextStepFindsTheFirstLayerThatCameAgain) {
  slots_.Begin();
  EXPECT_FALSE(FindsFirst(7) || FindsFirst(9));
  slots_.KeepFirst(*Number(7));
  slots_.ForgetFirst(*Number(9));
  for (int step = 0; step < 3; ++step) {  // also after steps that did not ask for it
    slots_.Begin();
    if (step == 1) continue;
    EXPECT_TRUE(FindsFirst(7));
    EXPECT_FALSE(FindsFirst(9));
  }
  slots_.ForgetFirst(*Number(7));  // the step was cut short
  slots_.Begin();
  EXPECT_FALSE(FindsFirst(7));
}

TEST_F(LayerSlotsTest, WhoTakesSlotsTakesThemFromBlocksThatTheStepHasNotNamed) {
  slots_.Begin();
  slots_.KeepFirst(*Number(7));
  slots_.KeepFirst(*Number(9));
  slots_.Begin();
  EXPECT_TRUE(FindsFirst(7));
  EXPECT_FALSE(FindsFirst(8));
  EXPECT_EQ(Number(8), 1) << "9 had it";
  EXPECT_EQ(Number(9), std::nullopt);
  slots_.KeepFirst(0);
  slots_.KeepFirst(1);
  slots_.Begin();
  EXPECT_FALSE(FindsFirst(9));
  EXPECT_TRUE(FindsFirst(7));
  EXPECT_EQ(Number(8), std::nullopt) << "9 has it again";
}

// Ten blocks at a time.
class FullSlotsTest : public testing::Test {
 protected:
  static std::vector<uint64_t> Range(uint64_t begin, uint64_t end) {
    std::vector<uint64_t> fillings(end - begin);
    std::iota(fillings.begin(), fillings.end(), begin);
    return fillings;
  }
  // A step that names these, in this order: those whose first layer was not there.
  std::vector<uint64_t> Step(const std::vector<std::vector<uint64_t>>& sequences) {
    slots_.Begin();
    std::vector<uint64_t> loads;
    std::vector<int64_t> streams;
    for (const std::vector<uint64_t>& sequence : sequences) {
      for (const uint64_t filling : sequence) {
        const auto stream = slots_.Assign(Filling(filling));
        EXPECT_TRUE(stream && stream->is_new) << filling;
        if (!stream->first_is_there) loads.push_back(filling);
        streams.push_back(stream->number);
      }
    }
    for (const int64_t stream : streams) slots_.KeepFirst(stream);
    return loads;
  }

  LayerSlots slots_{std::array<int32_t, 5>{5, 6, 7, 8, 9}, 4};
};

TEST_F(FullSlotsTest, ANewBlockTakesWhatTheLastStepDidNotUse) {
  ASSERT_EQ(slots_.capacity(), 10);
  (void)Step({Range(0, 10)});
  EXPECT_THAT(Step({Range(0, 4), Range(7, 10)}), IsEmpty());
  (void)Step({});  // nothing of a lease is read
  EXPECT_THAT(Step({{20, 21}, Range(7, 10), Range(0, 4)}), ElementsAre(20, 21));
  EXPECT_THAT(Step({Range(0, 4), Range(7, 10), {20, 21}}), IsEmpty());
}

TEST_F(FullSlotsTest, ANewBlockThatIsNamedFirstCostsOneOtherItsFirstLayer) {
  (void)Step({Range(0, 10)});
  EXPECT_THAT(Step({{20}, Range(6, 10), Range(0, 5)}), ElementsAre(20, 9)) << "5 is named no more";
  EXPECT_THAT(Step({{20}, Range(6, 10), Range(0, 5)}), IsEmpty());
}

TEST_F(LayerSlotsTest, TheFirstLayerComesAgainToTheSlotThatTheLastLayerIsNotReadIn) {
  for (int64_t num_layers : {2, 3, 4, 5}) {
    LayerSlots slots(std::array<int32_t, 2>{4, 2}, num_layers);
    for (int step = 0; step < 4; ++step) {
      slots.Begin();
      const int64_t stream = slots.Assign(Filling(7))->number;
      const LayerSlots::Slot again = slots.At(stream, num_layers);
      EXPECT_NE(again, slots.At(stream, num_layers - 1));
      slots.KeepFirst(stream);
      slots.Begin();
      ASSERT_TRUE(slots.Assign(Filling(7))->first_is_there);
      EXPECT_EQ(slots.At(stream, 0), again);
    }
  }
}

TEST_F(LayerSlotsTest, NoSlotHoldsTwoThingsThatAreNeededAtOnce) {
  for (int64_t num_layers : {1, 2, 3, 30}) {
    LayerSlots slots(std::array<int32_t, 3>{4, 2, 9}, num_layers);
    for (int64_t block = 0; block < slots.capacity(); ++block) {
      const int64_t stream = slots.Assign(Filling(block))->number;
      if (block % 2 == 0) slots.KeepFirst(stream);  // their turns differ
    }
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
