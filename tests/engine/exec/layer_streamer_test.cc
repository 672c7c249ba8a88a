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
        arena_(64 * layout_.block_bytes()),
        streamer_(layout_, transport_.space.Of(arena_.data()), &transport_, &clock_) {
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
  const std::byte* Slice(const LayerStreamer::Slots& slots, int64_t layer) const {
    return transport_.space.Host(slots[layer % 2]);
  }
  // Whether the layer's slot holds what the donor had of that block.
  bool Same(const LayerStreamer::Slots& slots, int64_t layer, kv::LeaseId lease, int64_t block) {
    const std::byte* const wanted = transport_.Memory(lease) + Offset(block) + layer * layout_.slice_bytes();
    return std::memcmp(Slice(slots, layer), wanted, layout_.slice_bytes()) == 0;
  }

  const backend::KvLayout layout_;
  FakeClock clock_;
  transport::FakeTransport transport_;
  std::vector<std::byte> arena_;
  LayerStreamer streamer_;
};

TEST_F(LayerStreamerTest, EachLayerArrivesWhileTheOneBeforeItIsStillThere) {
  const auto near = *streamer_.Add(kv::BlockId(1), kNear, Offset(5)),
             far = *streamer_.Add(kv::BlockId(2), kFar, Offset(0));
  streamer_.Start({});
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    streamer_.Arrived(layer).Wait();
    EXPECT_TRUE(Same(near, layer, kNear, 5) && Same(far, layer, kFar, 0)) << layer;
    if (layer > 0) {
      EXPECT_TRUE(Same(near, layer - 1, kNear, 5) && Same(far, layer - 1, kFar, 0)) << layer;
    }
    streamer_.Release(layer, {});
  }
  EXPECT_THAT(streamer_.End(), IsEmpty());
}

TEST_F(LayerStreamerTest, SequencesThatShareABlockShareItsSlots) {
  const auto first = *streamer_.Add(kv::BlockId(1), kNear, Offset(5)),
             second = *streamer_.Add(kv::BlockId(2), kNear, Offset(6));
  EXPECT_EQ(streamer_.Add(kv::BlockId(1), kNear, Offset(5)), first);
  streamer_.Start({});
  streamer_.Arrived(0).Wait();
  EXPECT_TRUE(Same(first, 0, kNear, 5) && Same(second, 0, kNear, 6));
}

TEST_F(LayerStreamerTest, WhatFindsNoSlotIsNotStreamed) {
  const auto first = streamer_.Add(kv::BlockId(0), kNear, Offset(0));
  for (int32_t i = 1; i < 4; ++i) EXPECT_TRUE(streamer_.Add(kv::BlockId(i), kNear, Offset(i)).has_value());
  EXPECT_EQ(streamer_.Add(kv::BlockId(4), kNear, Offset(4)), std::nullopt);
  streamer_.Begin();
  EXPECT_EQ(streamer_.Add(kv::BlockId(4), kNear, Offset(4)), first) << "the next step has all slots";
}

TEST_F(LayerStreamerTest, WithoutSlotsNothingIsStreamed) {
  streamer_.SetSlots({});
  EXPECT_EQ(streamer_.Add(kv::BlockId(1), kNear, 0), std::nullopt);
  EXPECT_TRUE(streamer_.empty());
}

TEST_F(LayerStreamerTest, ALossIsToldWithTheFirstLayerThatItSpoiltAndByLease) {
  const auto near = *streamer_.Add(kv::BlockId(1), kNear, Offset(5)),
             far = *streamer_.Add(kv::BlockId(2), kFar, Offset(0));
  streamer_.Start({});
  streamer_.Arrived(0).Wait();
  const std::vector<std::byte> good(Slice(near, 0), Slice(near, 0) + layout_.slice_bytes());
  transport_.Fence(kNear);  // and its memory is somebody else's
  EXPECT_EQ(std::memcmp(Slice(near, 0), good.data(), good.size()), 0) << "what has arrived stays good";
  EXPECT_THAT(streamer_.Lost(), IsEmpty());
  streamer_.Arrived(1).Wait();
  EXPECT_THAT(streamer_.Lost(), ElementsAre(kNear));
  EXPECT_TRUE(Same(far, 1, kFar, 0)) << "the other lease is as good as before";
  EXPECT_THAT(streamer_.End(), ElementsAre(kNear));
}

TEST_F(LayerStreamerTest, StallIsTheTimeThatSomebodyWaitedForALayer) {
  transport_.on_await = [this] { clock_.Advance(absl::Milliseconds(2)); };
  ASSERT_TRUE(streamer_.Add(kv::BlockId(1), kNear, 0).has_value());
  streamer_.Start({});
  EXPECT_NE(streamer_.Arrived(0).state()->stands_for(), nullptr) << "a device could not wait for it without the host";
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    streamer_.Arrived(layer).Wait();
    streamer_.Release(layer, {});
    clock_.Advance(absl::Milliseconds(10));  // the layer
  }
  (void)streamer_.End();
  EXPECT_EQ(streamer_.stall(), absl::Milliseconds(8));
  streamer_.Begin();
  streamer_.Start({});
  streamer_.Arrived(0).Wait();
  EXPECT_EQ(streamer_.stall(), absl::Milliseconds(8)) << "a step that streams nothing waits for nothing";
}

}  // namespace
}  // namespace swiftcache::engine::exec
