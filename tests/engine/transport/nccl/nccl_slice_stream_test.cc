// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/nccl/nccl_slice_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/engine/transport/nccl/nccl_harness.h"

namespace swiftcache::engine::transport::nccl {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr int64_t kLayers = 6, kSlice = 8 * kKiB, kSources = 3;

// A borrower of two donors, of whose leases blocks of kLayers slices are streamed: kSources of each, all to slots of
// their own at the start of the borrower's arena.
class NcclSliceStreamTest : public testing::Test {
 protected:
  NcclSliceStreamTest() {
    a_.Fill(0, KvOf(1));
    b_.Fill(0, KvOf(2));
    (void)Lend(a_, borrower_, kLease, 0);
    (void)Lend(b_, borrower_, kOther, 0);
  }
  static int64_t OffsetOf(int64_t source) { return source * kLayers * kSlice; }
  static int64_t SlotOf(int64_t place, int64_t layer) { return (2 * place + layer % 2) * kSlice; }
  void Add(StreamSpec& spec, kv::LeaseId lease, int64_t source) {
    const auto place = static_cast<int64_t>(spec.sources.size());
    spec.sources.push_back({.lease = lease,
                            .offset_bytes = OffsetOf(source),
                            .slots = {borrower_.At(SlotOf(place, 0)), borrower_.At(SlotOf(place, 1))}});
  }
  StreamSpec Both() {
    StreamSpec spec = {.num_layers = kLayers, .slice_bytes = kSlice};
    for (int64_t source = 0; source < kSources; ++source) {
      Add(spec, kLease, source);
      Add(spec, kOther, source);
    }
    return spec;
  }
  // The first donor's, or the second's. Made once: kernels of the fake device look at it, for which others wait.
  static const std::vector<std::byte>& KvOf(int donor) {
    static const std::vector<std::byte> of_first = Pattern(kNcclLeaseBytes, 1), of_second = Pattern(kNcclLeaseBytes, 2);
    return donor == 1 ? of_first : of_second;
  }
  static std::vector<std::byte> SliceOf(int donor, int64_t source, int64_t layer) {
    const auto begin = KvOf(donor).begin() + OffsetOf(source) + layer * kSlice;
    return {begin, begin + kSlice};
  }
  void ExpectLayer(int64_t layer) {
    for (int64_t source = 0; source < kSources; ++source) {
      EXPECT_EQ(borrower_.Read(SlotOf(2 * source, layer), kSlice), SliceOf(1, source, layer)) << layer;
      EXPECT_EQ(borrower_.Read(SlotOf(2 * source + 1, layer), kSlice), SliceOf(2, source, layer)) << layer;
    }
  }
  void ReadLayers(SliceStream& stream, int64_t layers) {
    for (int64_t layer = 0; layer < layers; ++layer) {
      stream.Arrived(layer).Wait();
      ExpectLayer(layer);
      stream.Release(layer, {});
    }
  }
  // The device does it, and the layer's slots are free behind that.
  void ReadOnDevice(SliceStream& stream, int64_t layer, backend::cuda::Stream compute, std::function<void()> act) {
    ASSERT_TRUE(borrower_.driver.Launch(compute, std::move(act)).ok());
    auto read = backend::cuda::EventFence::Create(borrower_.driver).value();
    ASSERT_TRUE(read->Record(compute).ok());
    stream.Release(layer, backend::Fence(read));
  }

  ShmFolder folder_;
  NcclNode a_{folder_, "a"}, b_{folder_, "b"}, borrower_{folder_, "borrower"};
};

TEST_F(NcclSliceStreamTest, EachLayerIsInItsSlotsWhenItHasArrived) {
  const auto stream = borrower_.transport->BeginStream(Both(), {});
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    stream->Arrived(layer).Wait();
    EXPECT_TRUE(stream->Arrived(layer).Passed());
    ExpectLayer(layer);
    stream->Release(layer, {});
  }
  EXPECT_THAT(stream->Lost(), IsEmpty());
  EXPECT_THAT(stream->End(), IsEmpty());
}

TEST_F(NcclSliceStreamTest, TheFirstLayerComesAgainBehindTheLastAndIsNotSentWhereItIsThere) {
  StreamSpec spec = Both();
  spec.first_again = true;
  for (int step = 0; step < 3; ++step) {
    const int64_t groups = borrower_.nccl.num_groups();
    const auto stream = borrower_.transport->BeginStream(spec, {});
    if (step == 2) {
      EXPECT_TRUE(stream->Arrived(0).Passed()) << "all of it is there";
    }
    ReadLayers(*stream, kLayers);
    EXPECT_THAT(stream->End(), IsEmpty());
    ExpectLayer(0);  // of an even number of layers, it lies where it lay
    EXPECT_EQ(borrower_.nccl.num_groups() - groups, step == 2 ? 2 * kLayers : 2 * (kLayers + 1));
    // In the second step some of the first donor's are there, in the third all.
    for (size_t i = 0; i < spec.sources.size(); ++i) spec.sources[i].first_is_there = step == 1 || i % 4 == 0;
  }
}

TEST_F(NcclSliceStreamTest, OfAnOddNumberOfLayersTheFirstComesAgainToTheOtherSlot) {
  StreamSpec spec = Both();
  spec.num_layers = kLayers - 1;
  spec.first_again = true;
  const auto stream = borrower_.transport->BeginStream(spec, {});
  ReadLayers(*stream, spec.num_layers);
  EXPECT_THAT(stream->End(), IsEmpty());
  EXPECT_EQ(borrower_.Read(SlotOf(0, 1), kSlice), SliceOf(1, 0, 0));
  EXPECT_EQ(borrower_.Read(SlotOf(1, 1), kSlice), SliceOf(2, 0, 0));
}

TEST_F(NcclSliceStreamTest, ASlotIsWrittenAgainOnlyWhenItHasBeenRead) {
  const backend::cuda::Stream compute = borrower_.driver.CreateStream().value();
  const auto stream = borrower_.transport->BeginStream(Both(), {});
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    stream->Arrived(layer).Wait();
    ReadOnDevice(*stream, layer, compute, [this, layer] {
      absl::SleepFor(absl::Milliseconds(5));  // late
      ExpectLayer(layer);
    });
  }
  EXPECT_THAT(stream->End(), IsEmpty());
  borrower_.driver.DestroyStream(compute);
}

TEST_F(NcclSliceStreamTest, ADeviceWaitsByItselfForWhatOneDonorSends) {
  StreamSpec of_one = {.num_layers = kLayers, .slice_bytes = kSlice};
  for (int64_t source = 0; source < kSources; ++source) Add(of_one, kLease, source);
  const backend::cuda::Stream compute = borrower_.driver.CreateStream().value();
  for (const bool one : {true, false}) {
    const auto stream = borrower_.transport->BeginStream(one ? of_one : Both(), {});
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const backend::Fence arrived = stream->Arrived(layer);
      const absl::Time deadline = absl::Now() + absl::Seconds(10);
      while (one && arrived.state()->stands_for() == nullptr && !arrived.Passed() && absl::Now() < deadline) {
        absl::SleepFor(absl::Microseconds(100));  // until the donor has been asked, and NCCL has it
      }
      EXPECT_TRUE(one || arrived.state()->stands_for() == nullptr);
      EXPECT_TRUE(!one || backend::cuda::IsOrderable(borrower_.driver, arrived));
      ASSERT_TRUE(backend::cuda::OrderBehind(borrower_.driver, compute, arrived).ok());
      ReadOnDevice(*stream, layer, compute, [&, layer] {
        if (!one) return ExpectLayer(layer);
        for (int64_t source = 0; source < kSources; ++source) {
          EXPECT_EQ(borrower_.Read(SlotOf(source, layer), kSlice), SliceOf(1, source, layer));
        }
      });
    }
    EXPECT_THAT(stream->End(), IsEmpty());
    borrower_.driver.Finish(compute);
  }
  borrower_.driver.DestroyStream(compute);
}

TEST_F(NcclSliceStreamTest, LayersThatNobodyReleasedAreNotSent) {
  const auto stream = borrower_.transport->BeginStream(Both(), {});
  stream->Arrived(1).Wait();
  absl::SleepFor(absl::Milliseconds(20));
  ExpectLayer(0);
  ExpectLayer(1);
  stream->Release(0, {});
  stream->Arrived(2).Wait();
  ExpectLayer(2);
  EXPECT_THAT(stream->End(), IsEmpty()) << "it may end before its last layer";
  EXPECT_THAT(borrower_.LoadNow(kLease, 0, kSlice, 2 * kMiB), IsEmpty());
  EXPECT_EQ(borrower_.Read(2 * kMiB, kSlice), SliceOf(1, 0, 0));
}

TEST_F(NcclSliceStreamTest, OneMessageADonorDeclaresAStream) {
  for (int step = 0; step < 3; ++step) {
    const int64_t groups = borrower_.nccl.num_groups();
    const auto stream = borrower_.transport->BeginStream(Both(), {});
    EXPECT_THAT(stream->End(), IsEmpty());
    EXPECT_EQ(borrower_.nccl.num_groups() - groups, 2 * kLayers) << "a group a donor and layer";
  }
  EXPECT_EQ(borrower_.nccl.num_made(), 2);
}

TEST_F(NcclSliceStreamTest, ALeaseThatIsFencedInTheMidstCountsForNothingAndTheOthersDo) {
  const auto stream = borrower_.transport->BeginStream(Both(), {});
  for (int64_t layer = 0; layer < 3; ++layer) {
    stream->Arrived(layer).Wait();
    ExpectLayer(layer);
    if (layer == 2) {
      a_.transport->Fence(kLease);
      EXPECT_TRUE(borrower_.events.WaitFor([&] { return borrower_.events.donor_gone.contains(kLease); }));
      EXPECT_THAT(stream->Lost(), ElementsAre(kLease));
    }
    stream->Release(layer, {});
  }
  EXPECT_THAT(stream->End(), ElementsAre(kLease));
}

TEST_F(NcclSliceStreamTest, ALeaseThatIsFencedBeforeItIsAskedForCostsNoCommunicator) {
  const OpenSpec third = Granted(a_, borrower_, kv::LeaseId(9), kNcclLeaseBytes);
  EXPECT_TRUE(OpenNow(borrower_, third).ok());
  StreamSpec spec = Both();
  Add(spec, third.lease, 0);
  a_.transport->Fence(third.lease);
  const auto stream = borrower_.transport->BeginStream(spec, {});
  ReadLayers(*stream, kLayers);
  EXPECT_THAT(stream->End(), ElementsAre(third.lease));
  EXPECT_EQ(borrower_.nccl.num_made(), 2);
}

TEST_F(NcclSliceStreamTest, ADonorThatFallsSilentCostsItsLeasesAndNotThoseOfAnother) {
  a_.nccl.Mute();
  const absl::Time begin = absl::Now();
  const auto stream = borrower_.transport->BeginStream(Both(), {});
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    stream->Arrived(layer).Wait();
    EXPECT_EQ(borrower_.Read(SlotOf(1, layer), kSlice), SliceOf(2, 0, layer));
    stream->Release(layer, {});
  }
  EXPECT_THAT(stream->End(), ElementsAre(kLease));
  EXPECT_LT(absl::Now() - begin, 10 * Transport::kReadPatience);
  a_.nccl.Unmute();
}

TEST_F(NcclSliceStreamTest, ADonorThatDiesIsGivenUpAtOnce) {
  a_.nccl.Mute();
  b_.nccl.Mute();
  const absl::Time begin = absl::Now();
  const auto stream = borrower_.transport->BeginStream(Both(), {});
  a_.transport.reset();
  b_.transport.reset();
  stream->Arrived(0).Wait();
  EXPECT_THAT(stream->End(), UnorderedElementsAre(kLease, kOther));
  EXPECT_LT(absl::Now() - begin, Transport::kReadPatience);
}

// Whoever computes waits by its stream for the event of a transfer: the abort lets it go on.
TEST_F(NcclSliceStreamTest, AStreamThatWaitsForASilentDonorIsNotHungForEver) {
  a_.nccl.Mute();
  const auto stream = borrower_.transport->BeginStream(Both(), {});
  const backend::Fence arrived = stream->Arrived(0);
  EXPECT_FALSE(arrived.Passed());
  arrived.Wait();
  EXPECT_TRUE(arrived.Passed());
  EXPECT_THAT(stream->End(), ElementsAre(kLease));
}

// Nothing of it passes any more, what it is behind least of all.
TEST_F(NcclSliceStreamTest, OfADeviceThatIsLostItEndsAtOnce) {
  const backend::cuda::Stream computing = borrower_.driver.CreateStream().value();
  auto computed = backend::cuda::EventFence::Create(borrower_.driver).value();
  absl::Notification finish;
  ASSERT_TRUE(borrower_.driver.Launch(computing, [&] { finish.WaitForNotification(); }).ok());
  ASSERT_TRUE(computed->Record(computing).ok());
  StreamSpec spec = {.num_layers = kLayers, .slice_bytes = kSlice};
  Add(spec, kLease, 0);
  const auto stream = borrower_.transport->BeginStream(spec, backend::Fence(computed));
  for (int64_t layer = 0; layer < kLayers; ++layer) stream->Release(layer, {});
  const backend::Fence last = stream->Arrived(kLayers - 1);
  EXPECT_TRUE(Eventually([&] { return last.state()->stands_for() != nullptr; })) << "all layers are in the stream";
  borrower_.driver.Lose();
  const absl::Time begin = absl::Now();
  EXPECT_THAT(stream->End(), ElementsAre(kLease));
  EXPECT_LT(absl::Now() - begin, NcclDonor::kBorrowerPatience / 2) << "its donor gives it up by then";
  finish.Notify();
  computed.reset();
  borrower_.driver.DestroyStream(computing);
}

}  // namespace
}  // namespace swiftcache::engine::transport::nccl
