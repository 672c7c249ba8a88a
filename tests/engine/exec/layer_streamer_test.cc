// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/layer_streamer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_transport.h"

namespace swiftcache::engine::exec {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kLayers = 4, kLeaseBlocks = 8;
constexpr kv::LeaseId kNear(7), kFar(8);

class LayerStreamerTest : public testing::Test {
 protected:
  LayerStreamerTest()
      : layout_{.num_layers = kLayers,
                .num_kv_heads = 1,
                .head_dim = 4,
                .block_tokens = 4,
                .dtype = backend::KvDtype::kBf16},
        arena_(*kv::Arena::Create({.bytes = 64 * layout_.block_bytes(), .block_bytes = layout_.block_bytes()})),
        streamer_(layout_, &arena_, &transport_, &clock_) {
    std::mt19937 rng(1);
    for (const kv::LeaseId lease : {kNear, kFar}) {
      transport_.AddLease(lease, kLeaseBlocks * layout_.block_bytes(), kv::Epoch(3));
      std::byte* const memory = transport_.Memory(lease);
      for (int64_t i = 0; i < kLeaseBlocks * layout_.block_bytes(); ++i) memory[i] = static_cast<std::byte>(rng());
    }
    const int32_t slots[] = {3, 9};  // 8 slices: 4 blocks at a time
    streamer_.SetSlots(slots);
    streamer_.Begin();
  }

  int64_t Offset(int64_t block) const { return block * layout_.block_bytes(); }
  // Whether the slice holds what the donor had of that block.
  bool Same(int64_t stream, int64_t layer, kv::LeaseId lease, int64_t block) {
    const std::byte* const wanted = transport_.Memory(lease) + Offset(block) + layer * layout_.slice_bytes();
    return std::memcmp(streamer_.Slice(stream, layer), wanted, layout_.slice_bytes()) == 0;
  }

  const backend::KvLayout layout_;
  FakeClock clock_;
  transport::FakeTransport transport_;
  kv::Arena arena_;
  LayerStreamer streamer_;
};

TEST_F(LayerStreamerTest, EachLayerArrivesWhileTheOneBeforeItIsStillThere) {
  ASSERT_EQ(streamer_.Add(kv::BlockId(1), kNear, Offset(5)), 0);
  ASSERT_EQ(streamer_.Add(kv::BlockId(2), kFar, Offset(0)), 1);
  streamer_.Prefetch(0);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_THAT(streamer_.Arrive(layer), IsEmpty());
    EXPECT_TRUE(Same(0, layer, kNear, 5) && Same(1, layer, kFar, 0)) << layer;
    if (layer > 0) {
      EXPECT_TRUE(Same(0, layer - 1, kNear, 5) && Same(1, layer - 1, kFar, 0)) << layer;
    }
    streamer_.Prefetch(layer + 1);
  }
}

TEST_F(LayerStreamerTest, SequencesThatShareABlockShareItsSlots) {
  EXPECT_EQ(streamer_.Add(kv::BlockId(1), kNear, Offset(5)), 0);
  EXPECT_EQ(streamer_.Add(kv::BlockId(2), kNear, Offset(6)), 1);
  EXPECT_EQ(streamer_.Add(kv::BlockId(1), kNear, Offset(5)), 0);
  streamer_.Prefetch(0);
  EXPECT_THAT(streamer_.Arrive(0), IsEmpty());
  EXPECT_TRUE(Same(0, 0, kNear, 5) && Same(1, 0, kNear, 6));
}

TEST_F(LayerStreamerTest, WhatFindsNoSlotIsNotStreamed) {
  for (int32_t i = 0; i < 4; ++i) EXPECT_TRUE(streamer_.Add(kv::BlockId(i), kNear, Offset(i)).has_value());
  EXPECT_EQ(streamer_.Add(kv::BlockId(4), kNear, Offset(4)), std::nullopt);
  streamer_.Begin();
  EXPECT_EQ(streamer_.Add(kv::BlockId(4), kNear, Offset(4)), 0) << "the next step has all slots";
}

TEST_F(LayerStreamerTest, WithoutSlotsNothingIsStreamed) {
  streamer_.SetSlots({});
  EXPECT_EQ(streamer_.Add(kv::BlockId(1), kNear, 0), std::nullopt);
  EXPECT_TRUE(streamer_.empty());
}

TEST_F(LayerStreamerTest, ALossIsToldWithTheFirstLayerThatItSpoiltAndByLease) {
  ASSERT_TRUE(streamer_.Add(kv::BlockId(1), kNear, Offset(5)).has_value());
  ASSERT_TRUE(streamer_.Add(kv::BlockId(2), kFar, Offset(0)).has_value());
  streamer_.Prefetch(0);
  EXPECT_THAT(streamer_.Arrive(0), IsEmpty());
  const std::vector<std::byte> good(streamer_.Slice(0, 0), streamer_.Slice(0, 0) + layout_.slice_bytes());
  streamer_.Prefetch(1);
  transport_.Fence(kNear);  // and its memory is somebody else's
  EXPECT_EQ(std::memcmp(streamer_.Slice(0, 0), good.data(), good.size()), 0) << "what has arrived stays good";
  EXPECT_THAT(streamer_.Arrive(1), ElementsAre(kNear));
  EXPECT_TRUE(Same(1, 1, kFar, 0)) << "the other lease is as good as before";
}

TEST_F(LayerStreamerTest, StallIsTheTimeThatArriveWaited) {
  transport_.on_await = [this] { clock_.Advance(absl::Milliseconds(2)); };
  ASSERT_TRUE(streamer_.Add(kv::BlockId(1), kNear, 0).has_value());
  streamer_.Prefetch(0);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    streamer_.Arrive(layer);
    streamer_.Prefetch(layer + 1);
    clock_.Advance(absl::Milliseconds(10));  // the layer
  }
  EXPECT_EQ(streamer_.stall(), absl::Milliseconds(8));
  streamer_.Begin();
  streamer_.Prefetch(0);
  EXPECT_THAT(streamer_.Arrive(0), IsEmpty());
  EXPECT_EQ(streamer_.stall(), absl::Milliseconds(8)) << "a step that streams nothing waits for nothing";
}

}  // namespace
}  // namespace swiftcache::engine::exec
