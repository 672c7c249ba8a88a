// SPDX-License-Identifier: Apache-2.0
// Loads and streams: what waits for what on the device, and what of it is believed.
#include "engine/transport/cuda_ipc/cuda_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/backend/cuda/event_fence.h"
#include "tests/engine/transport/cuda_ipc/cuda_ipc_harness.h"

namespace swiftcache::engine::transport::cuda_ipc {
namespace {

using backend::cuda::EventFence;
using backend::cuda::ToNumber;

struct HostFence final : backend::FenceState {
  bool Passed() const override { return passed.HasBeenNotified(); }
  void Wait() const override { passed.WaitForNotification(); }
  absl::Notification passed;
};

// Four blocks of five layers in a lease; slots for two layers of each; and what a step made of them.
class CudaLoaderTest : public testing::Test {
 protected:
  static constexpr int64_t kSlice = 4096, kLayers = 5, kBlocks = 4, kBlock = kLayers * kSlice;
  static constexpr int64_t kSlots = 0, kRead = 4 * kUnit;  // in the borrower's arena

  CudaLoaderTest() {
    (void)Lend(donor_, borrower_, kLease, kLent, kLentBytes, kBlock);
    donor_.Write(kLent, kv_);
    compute_ = borrower_.driver.CreateStream().value();
  }
  ~CudaLoaderTest() override {
    borrower_.driver.DestroyStream(compute_);
    borrower_.transport->Close(kLease);
    EndCleanly(borrower_);
    EndCleanly(donor_);
  }
  int64_t Slot(int64_t block, int64_t layer) const { return kSlots + (layer % 2 * kBlocks + block) * kSlice; }
  std::unique_ptr<SliceStream> Begin(const backend::Fence& after = {}) {
    StreamSpec spec{.num_layers = kLayers, .slice_bytes = kSlice};
    for (int64_t i = 0; i < kBlocks; ++i) {
      spec.sources.push_back({kLease, i * kBlock, {borrower_.At(Slot(i, 0)), borrower_.At(Slot(i, 1))}});
    }
    return borrower_.transport->BeginStream(std::move(spec), after);
  }
  // A layer of a step: it waits for the slices, and reads them.
  backend::Fence Compute(int64_t layer, const backend::Fence& arrived) {
    EXPECT_TRUE(OrderBehind(borrower_.driver, compute_, arrived).ok());
    for (int64_t i = 0; i < kBlocks; ++i) {
      const backend::cuda::DeviceCopy read = {.to = ToNumber(borrower_.At(kRead + i * kBlock + layer * kSlice)),
                                              .from = ToNumber(borrower_.At(Slot(i, layer))),
                                              .bytes = kSlice};
      EXPECT_TRUE(borrower_.driver.Copy(compute_, {&read, 1}).ok());
    }
    auto event = EventFence::Create(borrower_.driver).value();
    EXPECT_TRUE(event->Record(compute_).ok());
    return backend::Fence(event);
  }
  backend::Fence Step(SliceStream& stream) {
    backend::Fence read;
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      read = Compute(layer, stream.Arrived(layer));
      stream.Release(layer, read);
    }
    return read;
  }

  ShmFolder folder_;
  CudaNode donor_{folder_, {.name = "donor"}}, borrower_{folder_, {.name = "borrower"}};
  const std::vector<std::byte> kv_ = Pattern(kBlocks * kBlock, 3);
  backend::cuda::Stream compute_{};
};

TEST_F(CudaLoaderTest, AWholeStepIsGivenToTheDeviceBeforeItDoesAnythingAndEventsKeepItsOrder) {
  borrower_.driver.Pause();
  const auto stream = Begin();
  const backend::Fence done = Step(*stream);
  EXPECT_FALSE(done.Passed());
  EXPECT_EQ(borrower_.driver.unfinished_copies(), kLayers + kLayers * kBlocks);
  EXPECT_TRUE(stream->Lost().empty());
  borrower_.driver.Resume();
  EXPECT_TRUE(stream->End().empty());
  done.Wait();
  EXPECT_TRUE(borrower_.Has(kRead, kv_));
  EXPECT_EQ(borrower_.driver.grids_copied(), kLayers);  // a layer is one copy
}

TEST_F(CudaLoaderTest, ManyStepsOneAfterTheOther) {
  backend::Fence last;
  for (int step = 0; step < 40; ++step) {
    last.Wait();
    std::memset(borrower_.Bytes(kRead), 0, kBlocks * kBlock);
    const auto stream = Begin(last);
    last = Step(*stream);
    EXPECT_TRUE(stream->End().empty());
    last.Wait();
    ASSERT_TRUE(borrower_.Has(kRead, kv_)) << step;
  }
}

TEST_F(CudaLoaderTest, WhatWaitsForAHostIsNotGivenToTheDeviceBefore) {
  const auto zeroing = std::make_shared<HostFence>();
  const auto stream = Begin(backend::Fence(zeroing));
  EXPECT_EQ(borrower_.driver.unfinished_copies(), 0);
  EXPECT_FALSE(stream->Arrived(0).Passed());
  std::memset(borrower_.Bytes(kSlots), 0, 2 * kBlocks * kSlice);
  zeroing->passed.Notify();
  stream->Arrived(0).Wait();
  EXPECT_TRUE(stream->Arrived(0).Passed());
  (void)Step(*stream).Wait();
  EXPECT_TRUE(stream->End().empty());
  EXPECT_TRUE(borrower_.Has(kRead, kv_));
}

TEST_F(CudaLoaderTest, OfALeaseThatIsFencedWhileItIsStreamedNothingIsBelieved) {
  borrower_.driver.Pause();
  const auto stream = Begin();
  const backend::Fence done = Step(*stream);
  donor_.transport->Fence(kLease);
  std::memset(donor_.Bytes(kLent), 0xff, kLentBytes);
  borrower_.driver.Resume();
  EXPECT_THAT(stream->End(), testing::ElementsAre(kLease));
  EXPECT_THAT(stream->Lost(), testing::ElementsAre(kLease));
  done.Wait();
  EXPECT_TRUE(done.Passed());  // the step was computed all the same
}

TEST_F(CudaLoaderTest, OtherLeasesOfTheStepAreGood) {
  const kv::LeaseId other(8);
  (void)Lend(donor_, borrower_, other, 48 * kUnit, kUnit, kBlock);
  donor_.Write(48 * kUnit, kv_);
  borrower_.driver.Pause();
  const Ticket load =
      borrower_.transport->Load({{kLease, 0, kBlock, borrower_.At(0)}, {other, 0, kBlock, borrower_.At(kUnit)}}, {});
  donor_.transport->Fence(kLease);
  borrower_.driver.Resume();
  EXPECT_THAT(borrower_.transport->Await(load), testing::ElementsAre(kLease));
  EXPECT_EQ(std::memcmp(borrower_.Bytes(kUnit), kv_.data(), kBlock), 0);
  borrower_.transport->Close(other);
}

TEST_F(CudaLoaderTest, WhatWasLoadedBeforeTheFenceIsGoodForEver) {
  const Ticket load = borrower_.transport->Load({{kLease, 0, kBlock, borrower_.At(0)}}, {});
  EXPECT_TRUE(borrower_.transport->Await(load).empty());
  donor_.transport->Fence(kLease);
  std::memset(donor_.Bytes(kLent), 0xff, kLentBytes);
  EXPECT_EQ(std::memcmp(borrower_.Bytes(0), kv_.data(), kBlock), 0);
  EXPECT_THAT(borrower_.LoadNow(kLease, 0, kBlock, 0), testing::ElementsAre(kLease));
  EXPECT_EQ(std::memcmp(borrower_.Bytes(0), kv_.data(), kBlock), 0);  // it was not even begun
}

TEST_F(CudaLoaderTest, AStoreWaitsForTheEventBeforeIt) {
  borrower_.driver.Pause();
  borrower_.Write(kRead, Pattern(kBlock, 9));
  const backend::cuda::DeviceCopy write = {
      .to = ToNumber(borrower_.At(0)), .from = ToNumber(borrower_.At(kRead)), .bytes = kBlock};
  ASSERT_TRUE(borrower_.driver.Copy(compute_, {&write, 1}).ok());
  const auto written = EventFence::Create(borrower_.driver).value();
  ASSERT_TRUE(written->Record(compute_).ok());
  const StorePiece piece{kLease, 0, borrower_.At(0), kBlock};
  const Ticket stored = borrower_.transport->Store({&piece, 1}, backend::Fence(written)).front();
  borrower_.driver.Resume();
  EXPECT_EQ(borrower_.events.Fate(stored), absl::OkStatus());
  EXPECT_TRUE(donor_.Has(kLent, Pattern(kBlock, 9)));
}

TEST_F(CudaLoaderTest, WhatComesBehindWorkThatFailedIsLostAndNotStored) {
  const backend::Fence failed(EventFence::Create(borrower_.driver).value());  // never recorded
  const Ticket load = borrower_.transport->Load({{kLease, 0, kBlock, borrower_.At(0)}}, failed);
  EXPECT_THAT(borrower_.transport->Await(load), testing::ElementsAre(kLease));
  const StorePiece piece{kLease, 0, borrower_.At(0), kBlock};
  const Ticket stored = borrower_.transport->Store({&piece, 1}, failed).front();
  EXPECT_EQ(borrower_.events.Fate(stored).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(donor_.Has(kLent, kv_));
  EXPECT_TRUE(borrower_.LoadNow(kLease, 0, kBlock, 0).empty());  // the lease itself is well
}

// Two leases of a chunk each, whose mappings lie one behind the other.
class AdjacentLeasesTest : public testing::Test {
 protected:
  static constexpr int64_t kBytes = 3 * kUnit;
  static constexpr kv::LeaseId kFirst{7}, kSecond{8};

  AdjacentLeasesTest() {
    first_ = Lend(donor_, borrower_, kFirst, 33 * kUnit, kBytes, kBytes).base;
    second_ = Lend(donor_, borrower_, kSecond, 36 * kUnit, kBytes, kBytes).base;
    donor_.Write(33 * kUnit, Pattern(kBytes, 1));
    donor_.Write(36 * kUnit, Pattern(kBytes, 2));
    EXPECT_EQ(ToNumber(second_), ToNumber(first_) + kBytes);
  }
  ~AdjacentLeasesTest() override {
    borrower_.transport->Close(kFirst);
    borrower_.transport->Close(kSecond);
    EndCleanly(borrower_);
    EndCleanly(donor_);
  }
  // The end of the first and the begin of the second, to one place.
  std::vector<kv::LeaseId> LoadBoth() {
    return borrower_.transport->Await(borrower_.transport->Load(
        {{kFirst, kBytes - kUnit, kUnit, borrower_.At(0)}, {kSecond, 0, kUnit, borrower_.At(kUnit)}}, {}));
  }
  bool HasFirst() const {
    return std::memcmp(borrower_.Bytes(0), Pattern(kBytes, 1).data() + kBytes - kUnit, kUnit) == 0;
  }
  bool HasSecond() const { return std::memcmp(borrower_.Bytes(kUnit), Pattern(kBytes, 2).data(), kUnit) == 0; }

  ShmFolder folder_;
  CudaNode donor_{folder_, {.name = "donor"}};
  CudaNode borrower_{folder_, {.name = "borrower", .adjacent_bytes = 256 * kUnit}};
  backend::DeviceAddress first_{}, second_{};
};

TEST_F(AdjacentLeasesTest, NoCopyIsOfTwo) {
  EXPECT_TRUE(LoadBoth().empty());
  EXPECT_TRUE(HasFirst() && HasSecond());
  EXPECT_EQ(borrower_.driver.runs_copied(), 2);
}

TEST_F(AdjacentLeasesTest, OneThatTheDriverRefusesIsLostAlone) {
  borrower_.driver.Refuse(ToNumber(first_));
  EXPECT_THAT(LoadBoth(), testing::ElementsAre(kFirst));
  EXPECT_TRUE(HasSecond());
  EXPECT_THAT(LoadBoth(), testing::ElementsAre(kFirst));
}

TEST_F(AdjacentLeasesTest, WhereTheLastIsRefusedTheFirstIsWaitedForAllTheSame) {
  borrower_.driver.Refuse(ToNumber(second_));
  EXPECT_THAT(LoadBoth(), testing::ElementsAre(kSecond));
  EXPECT_TRUE(HasFirst());
}

}  // namespace
}  // namespace swiftcache::engine::transport::cuda_ipc
