// SPDX-License-Identifier: Apache-2.0
// Streams of slices and stores, and the fences between them and a device.
#include "engine/transport/shm_slice_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/engine/transport/test_lease.h"
#include "tests/engine/transport/transport_harness.h"

namespace swiftcache::engine::transport {
namespace {

// A point in a device's work that a test decides about.
struct Later final : backend::FenceState {
  bool Passed() const override { return passed.HasBeenNotified(); }
  void Wait() const override { passed.WaitForNotification(); }
  absl::Notification passed;
};

class StreamTest : public testing::Test {
 protected:
  static constexpr int64_t kSlice = 4096, kLayers = 5;

  StreamTest() {
    (void)Lend(donor_, borrower_, kLease, 0, kLeaseBytes, kBlock);
    for (const int64_t at : {0, 1})
      EXPECT_EQ(borrower_.events.Fate(borrower_.Store(kLease, at * kBlock, Block(at), kBlock)), absl::OkStatus());
  }
  const std::byte* Block(int64_t i) const { return blocks_[i].data(); }
  StreamSpec Spec() {
    StreamSpec spec{.num_layers = kLayers, .slice_bytes = kSlice};
    for (const int64_t i : {0, 1}) {
      spec.sources.push_back(
          {kLease, i * kBlock, {At(slots_.data() + 2 * i * kSlice), At(slots_.data() + (2 * i + 1) * kSlice)}});
    }
    return spec;
  }
  std::unique_ptr<SliceStream> Begin(const backend::Fence& after = {}) {
    return borrower_.transport->BeginStream(Spec(), after);
  }
  // All layers, one after the other.
  void ReadAll(SliceStream& stream) {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      stream.Arrived(layer).Wait();
      EXPECT_TRUE(IsThere(layer)) << layer;
      stream.Release(layer, {});
    }
  }
  bool IsThere(int64_t layer) const {
    const auto same = [&](int64_t i) {
      return std::memcmp(slots_.data() + (2 * i + layer % 2) * kSlice, Block(i) + layer * kSlice, kSlice) == 0;
    };
    return same(0) && same(1);
  }

  static constexpr int64_t kBlock = kLayers * kSlice;
  ShmFolder folder_;
  Node donor_{folder_, {.name = "donor"}}, borrower_{folder_, {.name = "borrower"}};
  const std::vector<std::byte> blocks_[2] = {Pattern(kBlock, 1), Pattern(kBlock, 2)};
  std::vector<std::byte> slots_ = std::vector<std::byte>(4 * kSlice);
};

TEST_F(StreamTest, LayersArriveInTheirSlotsAsThoseBeforeThemAreReleased) {
  const auto stream = Begin();
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    stream->Arrived(layer).Wait();
    EXPECT_TRUE(stream->Arrived(layer).Passed());
    EXPECT_TRUE(IsThere(layer)) << layer;
    stream->Release(layer, {});
  }
  EXPECT_TRUE(stream->End().empty());
  EXPECT_EQ(borrower_.transport->stats().loaded_bytes, 2 * kBlock);
}

TEST_F(StreamTest, TheFirstLayerComesAgainBehindTheLast) {
  StreamSpec spec = Spec();
  spec.first_again = true;
  const auto stream = borrower_.transport->BeginStream(spec, {});
  ReadAll(*stream);
  EXPECT_TRUE(stream->End().empty());
  for (const int64_t i : {0, 1}) {  // where layer 5 would lie
    EXPECT_EQ(std::memcmp(slots_.data() + (2 * i + 1) * kSlice, Block(i), kSlice), 0);
  }
}

TEST_F(StreamTest, AFirstLayerThatIsThereIsNotLoaded) {
  for (const bool all : {false, true}) {
    StreamSpec spec = Spec();
    for (const int64_t i : {0, 1}) std::memcpy(slots_.data() + 2 * i * kSlice, Block(i), kSlice);
    std::fill_n(slots_.data() + (all ? 0 : 2) * kSlice, all ? 0 : kSlice, std::byte{0});
    spec.sources[0].first_is_there = true;
    spec.sources[1].first_is_there = all;
    const int64_t before = borrower_.transport->stats().loaded_bytes;
    const auto writing = std::make_shared<Later>();
    const auto stream = borrower_.transport->BeginStream(spec, backend::Fence(writing));
    EXPECT_EQ(stream->Arrived(0).Passed(), all) << "it waits for nothing";
    writing->passed.Notify();
    ReadAll(*stream);
    EXPECT_TRUE(stream->End().empty());
    EXPECT_EQ(borrower_.transport->stats().loaded_bytes - before, 2 * kBlock - (all ? 2 : 1) * kSlice);
  }
}

TEST_F(StreamTest, TheFirstLayerDoesNotComeAgainWhereTheStepEndsEarly) {
  StreamSpec spec = Spec();
  spec.first_again = true;
  const auto stream = borrower_.transport->BeginStream(spec, {});
  stream->Arrived(0).Wait();
  stream->Release(0, {});
  EXPECT_TRUE(stream->End().empty());
  EXPECT_EQ(borrower_.transport->stats().loaded_bytes, 2 * 3 * kSlice);
}

TEST_F(StreamTest, TheEndNamesALeaseThatChangedHandsWhileTheFirstLayerCameAgain) {
  StreamSpec spec = Spec();
  spec.first_again = true;
  const auto stream = borrower_.transport->BeginStream(spec, {});
  const auto reading = std::make_shared<Later>();
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    stream->Arrived(layer).Wait();
    stream->Release(layer, layer == kLayers - 2 ? backend::Fence(reading) : backend::Fence());
  }
  donor_.transport->Fence(kLease);
  reading->passed.Notify();
  EXPECT_THAT(stream->End(), testing::ElementsAre(kLease));
}

TEST_F(StreamTest, WhoWaitsCopiesWhatTheThreadHasNotBegun) {
  const auto never = std::make_shared<Later>();
  const auto held = Begin(backend::Fence(never));  // the thread waits for it
  slots_.assign(slots_.size(), std::byte{0});
  const auto stream = Begin();
  ReadAll(*stream);
  EXPECT_TRUE(stream->End().empty());
  never->passed.Notify();
  EXPECT_TRUE(held->End().empty());
}

TEST_F(StreamTest, NothingIsWrittenBeforeTheFence) {
  const auto zeroing = std::make_shared<Later>();
  const auto stream = Begin(backend::Fence(zeroing));
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(stream->Arrived(0).Passed());
  std::fill(slots_.begin(), slots_.end(), std::byte{0});
  zeroing->passed.Notify();
  for (const int64_t layer : {0, 1}) {
    stream->Arrived(layer).Wait();
    EXPECT_TRUE(IsThere(layer)) << layer;
  }
}

TEST_F(StreamTest, ALoadBeginsAfterItsFence) {
  const auto zeroing = std::make_shared<Later>();
  std::vector<std::byte> loaded(kBlock);
  const Ticket load = borrower_.transport->Load({{kLease, 0, kBlock, At(loaded.data())}}, backend::Fence(zeroing));
  absl::SleepFor(absl::Milliseconds(20));
  std::fill(loaded.begin(), loaded.end(), std::byte{0});
  zeroing->passed.Notify();
  EXPECT_TRUE(borrower_.transport->Await(load).empty());
  EXPECT_EQ(std::memcmp(loaded.data(), Block(0), kBlock), 0);
}

TEST_F(StreamTest, ASlotIsNotWrittenBeforeItsReaderIsDone) {
  const auto stream = Begin();
  const auto reading = std::make_shared<Later>();
  stream->Arrived(0).Wait();
  stream->Release(0, backend::Fence(reading));
  stream->Arrived(1).Wait();
  stream->Release(1, {});  // layer 3 has its slots, but comes behind layer 2
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_TRUE(IsThere(0));
  EXPECT_FALSE(stream->Arrived(2).Passed());
  reading->passed.Notify();
  stream->Arrived(2).Wait();
  EXPECT_TRUE(IsThere(2));
  EXPECT_TRUE(stream->End().empty());
}

TEST_F(StreamTest, TheEndNamesALeaseThatChangedHandsWhileItWasStreamed) {
  const auto stream = Begin();
  stream->Arrived(1).Wait();
  donor_.transport->Fence(kLease);
  stream->Release(0, {});
  EXPECT_THAT(stream->End(), testing::ElementsAre(kLease));
}

TEST_F(StreamTest, WhatHadArrivedBeforeTheFenceIsGood) {
  const auto stream = Begin();
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    stream->Arrived(layer).Wait();
    stream->Release(layer, {});
  }
  donor_.transport->Fence(kLease);
  EXPECT_TRUE(stream->End().empty());
}

TEST_F(StreamTest, AStoreBeginsAfterItsFence) {
  const auto writing = std::make_shared<Later>();
  std::vector<std::byte> block(kBlock, std::byte{1});
  const StorePiece piece{kLease, 0, At(block.data()), kBlock};
  const Ticket ticket = borrower_.transport->Store({&piece, 1}, backend::Fence(writing)).front();
  absl::SleepFor(absl::Milliseconds(20));
  std::fill(block.begin(), block.end(), std::byte{2});
  writing->passed.Notify();
  ASSERT_EQ(borrower_.events.Fate(ticket), absl::OkStatus());
  EXPECT_EQ(std::memcmp(donor_.arena.base(), block.data(), kBlock), 0);
}

TEST_F(StreamTest, AStoreWhoseFenceDoesNotPassHoldsUpNobodyWhoEndsTheLease) {
  const auto writing = std::make_shared<Later>();
  const std::vector<std::byte> block(kBlock);
  const StorePiece piece{kLease, 0, At(block.data()), kBlock};
  const Ticket ticket = borrower_.transport->Store({&piece, 1}, backend::Fence(writing)).front();
  borrower_.transport->Abandon(kLease);
  writing->passed.Notify();
  EXPECT_TRUE(absl::IsUnavailable(borrower_.events.Fate(ticket)));
  borrower_.transport->Close(kLease);
}

}  // namespace
}  // namespace swiftcache::engine::transport
