// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/layer_streamer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
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
        streamer_(std::in_place, layout_, transport_.space.Of(arena_.data()), &transport_, &clock_) {
    std::mt19937 rng(1);
    for (const kv::LeaseId lease : {kNear, kFar}) {
      transport_.AddLease(lease, kLeaseBlocks * layout_.block_bytes(), kv::Epoch(3));
      std::byte* const memory = transport_.Memory(lease);
      for (int64_t i = 0; i < kLeaseBlocks * layout_.block_bytes(); ++i) memory[i] = static_cast<std::byte>(rng());
    }
    const int32_t slots[] = {3, 9};  // 8 slices: 4 blocks at a time
    streamer_->SetSlots(slots);
    streamer_->Begin();
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

  std::optional<LayerStreamer::Slots> Add(uint64_t filling, kv::LeaseId lease, int64_t at) {
    return streamer_->Add(kv::Filling(filling), lease, Offset(at));
  }
  // All layers of a step, from `first` on; `is_there`: what each of them reads is right.
  void Compute(absl::FunctionRef<bool(int64_t layer)> is_there, int64_t first = 0) {
    for (int64_t layer = first; layer < layout_.num_layers; ++layer) {
      streamer_->Arrived(layer).Wait();
      EXPECT_TRUE(is_there(layer)) << layer;
      streamer_->Release(layer, {});
    }
  }
  // That reads one block.
  void ComputeAStep() {
    const auto near = *Add(1, kNear, 5);
    streamer_->Start({});
    Compute([&](int64_t layer) { return Same(near, layer, kNear, 5); });
    EXPECT_THAT(streamer_->End(), IsEmpty());
  }
  // In a step that reads it again.
  void ExpectNothingFound() {
    const int64_t before = transport_.first_layers().found;
    streamer_->Begin();
    const auto near = *Add(1, kNear, 5);
    streamer_->Start({});
    Compute([&](int64_t layer) { return Same(near, layer, kNear, 5); });
    EXPECT_EQ(transport_.first_layers().found, before);
  }
  void UseLayers(int64_t layers) {
    layout_.num_layers = layers;
    streamer_.emplace(layout_, transport_.space.Of(arena_.data()), &transport_, &clock_);
    streamer_->SetSlots(std::array<int32_t, 2>{3, 9});
  }

  backend::KvLayout layout_;
  FakeClock clock_;
  transport::FakeTransport transport_;
  std::vector<std::byte> arena_;
  std::optional<LayerStreamer> streamer_;  // always there; made anew for another number of layers
};

TEST_F(LayerStreamerTest, EachLayerArrivesWhileTheOneBeforeItIsStillThere) {
  const auto near = *streamer_->Add(kv::Filling(1), kNear, Offset(5)),
             far = *streamer_->Add(kv::Filling(2), kFar, Offset(0));
  streamer_->Start({});
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    streamer_->Arrived(layer).Wait();
    EXPECT_TRUE(Same(near, layer, kNear, 5) && Same(far, layer, kFar, 0)) << layer;
    if (layer > 0) {
      EXPECT_TRUE(Same(near, layer - 1, kNear, 5) && Same(far, layer - 1, kFar, 0)) << layer;
    }
    streamer_->Release(layer, {});
  }
  EXPECT_THAT(streamer_->End(), IsEmpty());
}

TEST_F(LayerStreamerTest, SequencesThatShareABlockShareItsSlots) {
  const auto first = *streamer_->Add(kv::Filling(1), kNear, Offset(5)),
             second = *streamer_->Add(kv::Filling(2), kNear, Offset(6));
  EXPECT_EQ(streamer_->Add(kv::Filling(1), kNear, Offset(5)), first);
  streamer_->Start({});
  streamer_->Arrived(0).Wait();
  EXPECT_TRUE(Same(first, 0, kNear, 5) && Same(second, 0, kNear, 6));
}

TEST_F(LayerStreamerTest, WhatFindsNoSlotIsNotStreamed) {
  for (int32_t i = 0; i < 3; ++i) EXPECT_TRUE(streamer_->Add(kv::Filling(i), kNear, Offset(i)).has_value());
  const auto last = streamer_->Add(kv::Filling(3), kNear, Offset(3));
  EXPECT_EQ(streamer_->Add(kv::Filling(4), kNear, Offset(4)), std::nullopt);
  streamer_->Begin();
  EXPECT_EQ(streamer_->Add(kv::Filling(4), kNear, Offset(4)), last) << "the next step has all slots";
}

TEST_F(LayerStreamerTest, WithoutSlotsNothingIsStreamed) {
  streamer_->SetSlots({});
  EXPECT_EQ(streamer_->Add(kv::Filling(1), kNear, 0), std::nullopt);
  EXPECT_TRUE(streamer_->empty());
}

TEST_F(LayerStreamerTest, ALossIsToldWithTheFirstLayerThatItSpoiltAndByLease) {
  const auto near = *streamer_->Add(kv::Filling(1), kNear, Offset(5)),
             far = *streamer_->Add(kv::Filling(2), kFar, Offset(0));
  streamer_->Start({});
  streamer_->Arrived(0).Wait();
  const std::vector<std::byte> good(Slice(near, 0), Slice(near, 0) + layout_.slice_bytes());
  transport_.Fence(kNear);  // and its memory is somebody else's
  EXPECT_EQ(std::memcmp(Slice(near, 0), good.data(), good.size()), 0) << "what has arrived stays good";
  EXPECT_THAT(streamer_->Lost(), IsEmpty());
  streamer_->Arrived(1).Wait();
  EXPECT_THAT(streamer_->Lost(), ElementsAre(kNear));
  EXPECT_TRUE(Same(far, 1, kFar, 0)) << "the other lease is as good as before";
  EXPECT_THAT(streamer_->End(), ElementsAre(kNear));
}

TEST_F(LayerStreamerTest, TheFirstLayerIsLoadedForTheNextStepBehindTheLastOne) {
  for (int step = 0; step < 5; ++step) {
    if (step > 0) streamer_->Begin();
    const auto near = *Add(1, kNear, 5), far = *Add(2, kFar, 0);
    streamer_->Start({});
    if (step > 0) {
      EXPECT_TRUE(streamer_->Arrived(0).Passed());
    }
    Compute([&](int64_t layer) { return Same(near, layer, kNear, 5) && Same(far, layer, kFar, 0); });
    EXPECT_THAT(streamer_->End(), IsEmpty());
    EXPECT_EQ(transport_.first_layers().loaded, 2);
    EXPECT_EQ(transport_.first_layers().found, 2 * step);
  }
}

TEST_F(LayerStreamerTest, OfAnOddNumberOfLayersTheSlotsChangePlacesEachStep) {
  for (int64_t layers : {2, 3, 5}) {
    UseLayers(layers);
    const int64_t found_before = transport_.first_layers().found;
    for (int step = 0; step < 5; ++step) {
      streamer_->Begin();
      const auto near = *Add(1, kNear, 5);
      // A block comes in each step, and one goes: their turns differ.
      const auto other = *streamer_->Add(kv::Filling(10 + step), kFar, Offset(step));
      streamer_->Start({});
      Compute([&](int64_t layer) { return Same(near, layer, kNear, 5) && Same(other, layer, kFar, step); });
      EXPECT_THAT(streamer_->End(), IsEmpty());
    }
    EXPECT_EQ(transport_.first_layers().found - found_before, 4) << layers;
  }
}

TEST_F(LayerStreamerTest, AFirstLayerIsNotThatOfAnotherFillingOfTheSamePlace) {
  ComputeAStep();
  std::fill_n(transport_.Memory(kNear) + Offset(5), layout_.block_bytes(), std::byte{7});
  streamer_->Begin();
  const auto anew = *Add(2, kNear, 5);
  streamer_->Start({});
  Compute([&](int64_t layer) { return Same(anew, layer, kNear, 5); });
  EXPECT_EQ(transport_.first_layers().found, 0);
}

TEST_F(LayerStreamerTest, AFirstLayerIsNotFoundAfterAStepThatWasCutShort) {
  ComputeAStep();
  streamer_->Begin();
  (void)*Add(1, kNear, 5);
  streamer_->Start({});
  streamer_->Arrived(0).Wait();
  streamer_->Release(0, {});  // layer 2 may be there now
  EXPECT_THAT(streamer_->End(), IsEmpty());
  ExpectNothingFound();
}

TEST_F(LayerStreamerTest, OfAStepThatGoesOnTheLayersComeThatItStillReads) {
  for (int64_t layers : {2, 3, 5}) {
    UseLayers(layers);
    for (int64_t first = 1; first < layers; ++first) {
      streamer_->Begin();
      ComputeAStep();
      streamer_->Begin(first);
      const auto near = *Add(1, kNear, 5), far = *Add(2, kFar, 0);
      const int64_t before = transport_.stats().loaded_bytes;
      streamer_->Start({});
      Compute([&](int64_t layer) { return Same(near, layer, kNear, 5) && Same(far, layer, kFar, 0); }, first);
      EXPECT_THAT(streamer_->End(), IsEmpty());
      EXPECT_EQ(transport_.stats().loaded_bytes - before, 2 * (layers - first) * layout_.slice_bytes());
      ExpectNothingFound();
      EXPECT_THAT(streamer_->End(), IsEmpty());
    }
  }
}

TEST_F(LayerStreamerTest, OfALeaseThatChangedHandsWhileTheFirstLayerCameAgainItIsNotFound) {
  const auto near = *Add(1, kNear, 5), far = *Add(2, kFar, 0);
  streamer_->Start({});
  Compute([&](int64_t layer) { return Same(near, layer, kNear, 5) && Same(far, layer, kFar, 0); });
  transport_.Fence(kNear);
  EXPECT_THAT(streamer_->End(), ElementsAre(kNear));
  streamer_->Begin();
  (void)*Add(1, kFar, 3);  // its block, elsewhere
  (void)*Add(2, kFar, 0);
  streamer_->Start({});
  EXPECT_EQ(transport_.first_layers().found, 1) << "of the other lease";
}

TEST_F(LayerStreamerTest, OtherSlotsHoldNoFirstLayers) {
  ComputeAStep();
  const int32_t slots[] = {3, 9, 11};
  streamer_->SetSlots(slots);
  ExpectNothingFound();
}

TEST_F(LayerStreamerTest, StallIsTheTimeThatSomebodyWaitedForALayer) {
  transport_.on_await = [this] { clock_.Advance(absl::Milliseconds(2)); };
  ASSERT_TRUE(streamer_->Add(kv::Filling(1), kNear, 0).has_value());
  streamer_->Start({});
  EXPECT_NE(streamer_->Arrived(0).state()->stands_for(), nullptr) << "a device could not wait for it without the host";
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    streamer_->Arrived(layer).Wait();
    streamer_->Release(layer, {});
    clock_.Advance(absl::Milliseconds(10));  // the layer
  }
  (void)streamer_->End();
  EXPECT_EQ(streamer_->stall(), absl::Milliseconds(10)) << "four layers, and the next step's first one at the end";
  streamer_->Begin();
  streamer_->Start({});
  streamer_->Arrived(0).Wait();
  EXPECT_EQ(streamer_->stall(), absl::Milliseconds(10)) << "a step that streams nothing waits for nothing";
}

}  // namespace
}  // namespace swiftcache::engine::exec
