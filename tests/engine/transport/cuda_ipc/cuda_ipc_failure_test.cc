// SPDX-License-Identifier: Apache-2.0
// The driver of either side fails, once or for good, at each of its calls in turn.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iostream>
#include <vector>

#include "engine/transport/cuda_ipc/cuda_ipc_transport.h"
#include "tests/engine/transport/cuda_ipc/cuda_ipc_harness.h"

namespace swiftcache::engine::transport::cuda_ipc {
namespace {

constexpr int64_t kSlice = 4096, kLayers = 4, kBlocks = 4, kBlock = kLayers * kSlice;
constexpr int64_t kLoaded = 8 * kUnit, kSlots = 16 * kUnit;  // in the borrower's arena

std::vector<std::byte> Block(int64_t i) { return Pattern(kBlock, 100 + i); }

// What is still promised of the life of a lease: who is told that all is well has the right bytes, the others are told
// that it is not, and the owner's memory is the owner's.
class Life {
 public:
  Life(CudaNode& donor, CudaNode& borrower) : donor_(donor), borrower_(borrower) {}

  void Run() {
    spec_ = Granted(donor_, borrower_, kLease, kLent, kLentBytes, kBlock);
    if (Open()) {
      for (int64_t i = 0; i < kBlocks; ++i) Store(i);
      Load();
      Stream();
    }
    donor_.transport->Fence(kLease);
    std::memset(donor_.Bytes(kLent), 0xff, kLentBytes);
    EXPECT_EQ(borrower_.LoadNow(kLease, 0, kBlock, kLoaded).size(), 1u);
    borrower_.transport->Close(kLease);
    EXPECT_TRUE(backend::cuda::AllAre(donor_.Bytes(kLent), kLentBytes, std::byte{0xff}));
  }
  int num_good() const { return num_good_; }

 private:
  // A failure need not be for good: the second try may succeed.
  bool Open() {
    for (int attempt = 0; attempt < 2; ++attempt) {
      const auto view = OpenNow(borrower_, spec_);
      if (view.ok()) return true;
      EXPECT_FALSE(view.status().message().empty());
      borrower_.transport->Close(kLease);
    }
    return false;
  }
  void Store(int64_t i) {
    borrower_.Write(i * kBlock, Block(i));
    const absl::Status fate = borrower_.events.Fate(borrower_.Store(kLease, i * kBlock, i * kBlock, kBlock));
    if (!fate.ok()) {
      EXPECT_TRUE(absl::IsUnavailable(fate) || absl::IsFailedPrecondition(fate)) << fate;
      return;
    }
    EXPECT_TRUE(donor_.Has(kLent + i * kBlock, Block(i)));
    stored_.push_back(i);
    ++num_good_;
  }
  void Load() {
    for (const int64_t i : stored_) {
      if (!borrower_.LoadNow(kLease, i * kBlock, kBlock, kLoaded).empty()) continue;
      EXPECT_TRUE(borrower_.Has(kLoaded, Block(i)));
      ++num_good_;
    }
  }
  void Stream() {
    if (stored_.empty()) return;
    StreamSpec spec{.num_layers = kLayers, .slice_bytes = kSlice};
    const auto slot = [](int64_t i, int64_t layer) { return kSlots + (layer % 2 * kBlocks + i) * kSlice; };
    for (const int64_t i : stored_) {
      spec.sources.push_back({kLease, i * kBlock, {borrower_.At(slot(i, 0)), borrower_.At(slot(i, 1))}});
    }
    const auto stream = borrower_.transport->BeginStream(std::move(spec), {});
    bool right = true;
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const backend::Fence arrived = stream->Arrived(layer);
      arrived.Wait();
      right = right && arrived.Passed();  // else the device still writes there, and the lease is lost
      for (const int64_t i : stored_) {
        const std::vector<std::byte> block = Block(i);
        right = right && std::memcmp(borrower_.Bytes(slot(i, layer)), block.data() + layer * kSlice, kSlice) == 0;
      }
      stream->Release(layer, {});
    }
    if (!stream->End().empty()) return;
    EXPECT_TRUE(right);
    ++num_good_;
  }

  CudaNode &donor_, &borrower_;
  OpenSpec spec_;
  std::vector<int64_t> stored_;
  int num_good_ = 0;
};

using Arm = std::function<void(FakeCudaDriver&, int64_t)>;

// Until there is no such call any more. Returns how many there were.
int64_t FailAtEachCall(bool at_donor, const Arm& arm) {
  for (int64_t nth = 1;; ++nth) {
    SCOPED_TRACE(testing::Message() << "call " << nth << " of the " << (at_donor ? "donor" : "borrower"));
    ShmFolder folder;
    const int64_t before = OpenDescriptors();
    bool failed = false;
    {
      CudaNode donor(folder, {.name = "donor", .most_late_us = 20});
      CudaNode borrower(folder, {.name = "borrower", .most_late_us = 20});
      FakeCudaDriver& driver = at_donor ? donor.driver : borrower.driver;
      arm(driver, nth);
      Life life(donor, borrower);
      life.Run();
      EndCleanly(borrower);
      EndCleanly(donor);
      failed = driver.HasFailed();
      EXPECT_TRUE(failed || life.num_good() == 2 * kBlocks + 1);
    }
    EXPECT_EQ(OpenDescriptors(), before);
    if (!failed) return nth - 1;
    if (testing::Test::HasFailure()) return nth;
  }
}

TEST(CudaIpcFailureTest, WhicheverCallFailsNothingWrongIsBelievedAndNothingIsLeft) {
  const Arm once = [](FakeCudaDriver& driver, int64_t nth) { driver.FailAt(nth); };
  const int64_t donor_calls = FailAtEachCall(true, once), borrower_calls = FailAtEachCall(false, once);
  std::cout << donor_calls << " calls of the donor, " << borrower_calls << " of the borrower\n";
  EXPECT_GE(donor_calls, 25);
  EXPECT_GE(borrower_calls, 60);
}

TEST(CudaIpcFailureTest, WheneverADeviceIsLostNothingWrongIsBelievedAndNothingHangs) {
  const Arm for_good = [](FakeCudaDriver& driver, int64_t nth) { driver.LoseAt(nth); };
  EXPECT_GE(FailAtEachCall(true, for_good), 25);
  EXPECT_GE(FailAtEachCall(false, for_good), 60);
}

}  // namespace
}  // namespace swiftcache::engine::transport::cuda_ipc
