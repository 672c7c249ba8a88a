// SPDX-License-Identifier: Apache-2.0
// Peers that fall silent, die or fence in the midst, and calls that fail: everything ends, nothing wrong is believed,
// and the next use has a communicator again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/engine/transport/nccl/nccl_harness.h"

namespace swiftcache::engine::transport::nccl {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class NcclFaultTest : public testing::Test {
 protected:
  NcclFaultTest() {
    donor_.Fill(0, Pattern(kNcclLeaseBytes, 1));
    donor_.Fill(kNcclLeaseBytes, Pattern(kNcclLeaseBytes, 2));
    (void)Lend(donor_, borrower_, kLease, 0);
    (void)Lend(donor_, borrower_, kOther, kNcclLeaseBytes);
  }
  // From the start of each lease.
  Ticket LoadBoth() {
    return borrower_.transport->Load({{kLease, 0, kPiece, borrower_.At(0)}, {kOther, 0, kPiece, borrower_.At(kMiB)}},
                                     {});
  }
  void ExpectThatLoadsWork(kv::LeaseId lease, uint64_t seed) {
    EXPECT_THAT(borrower_.LoadNow(lease, 0, kPiece, 2 * kMiB), IsEmpty());
    const std::vector<std::byte> kv = Pattern(kNcclLeaseBytes, seed);
    EXPECT_EQ(borrower_.Read(2 * kMiB, kPiece), std::vector<std::byte>(kv.begin(), kv.begin() + kPiece));
  }

  ShmFolder folder_;
  NcclNode donor_{folder_, "donor"}, borrower_{folder_, "borrower"};
};

TEST_F(NcclFaultTest, WhatIsReadAfterAFenceIsNotBelieved) {
  donor_.nccl.BeforeSends([&] {
    donor_.transport->Fence(kLease);
    donor_.Fill(0, Pattern(kPiece, 3));  // it is the owner's again
  });
  EXPECT_THAT(borrower_.transport->Await(LoadBoth()), ElementsAre(kLease));
  donor_.nccl.BeforeSends(nullptr);
  const std::vector<std::byte> other = Pattern(kNcclLeaseBytes, 2);
  EXPECT_EQ(borrower_.Read(kMiB, kPiece), std::vector<std::byte>(other.begin(), other.begin() + kPiece));
  EXPECT_EQ(borrower_.nccl.num_made(), 1);
  ExpectThatLoadsWork(kOther, 2);
}

TEST_F(NcclFaultTest, WhatWasLoadedBeforeAFenceIsGoodForEver) {
  const Ticket load = LoadBoth();
  EXPECT_TRUE(Eventually([&] { return borrower_.transport->stats().loaded_bytes == 2 * kPiece; }));
  donor_.transport->Fence(kLease);
  EXPECT_TRUE(borrower_.events.WaitFor([&] { return borrower_.events.donor_gone.contains(kLease); }));
  EXPECT_THAT(borrower_.transport->Await(load), IsEmpty());
}

TEST_F(NcclFaultTest, ALoadFromASilentDonorEndsInTimeAndTheNextHasANewCommunicator) {
  donor_.nccl.Mute();
  const absl::Time begin = absl::Now();
  EXPECT_THAT(borrower_.transport->Await(LoadBoth()), testing::UnorderedElementsAre(kLease, kOther));
  EXPECT_GE(absl::Now() - begin, Transport::kReadPatience);
  EXPECT_LT(absl::Now() - begin, 10 * Transport::kReadPatience);
  donor_.nccl.Unmute();
  ExpectThatLoadsWork(kLease, 1);
  EXPECT_EQ(borrower_.nccl.num_made(), 2);
}

// NCCL may take longer to connect than a load is waited for.
TEST_F(NcclFaultTest, ACommunicatorThatBreaksIsMadeAnewBeforeALoadAsksForIt) {
  const absl::Duration connect = Transport::kReadPatience * 3 / 4;  // of each direction
  for (NcclNode* node : {&donor_, &borrower_}) node->nccl.ConnectIn(connect);
  borrower_.nccl.FailAt(1);
  EXPECT_THAT(borrower_.LoadNow(kLease, 0, kPiece, 0), ElementsAre(kLease));
  ASSERT_TRUE(Eventually([&] { return borrower_.nccl.num_made() == 2; }));
  absl::SleepFor(2 * connect);
  ExpectThatLoadsWork(kLease, 1);
  EXPECT_EQ(borrower_.nccl.num_made(), 2);
}

TEST_F(NcclFaultTest, ALeaseThatIsAbandonedIsNotWaitedFor) {
  donor_.nccl.Mute();
  const absl::Time begin = absl::Now();
  const Ticket load = borrower_.Load(kLease, 0, kPiece, 0);
  const Ticket store = borrower_.Store(kLease, 0, kMiB, kPiece);
  borrower_.transport->Abandon(kLease);
  EXPECT_EQ(borrower_.events.Fate(store).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(borrower_.transport->Await(load), ElementsAre(kLease));
  EXPECT_LT(absl::Now() - begin, Transport::kReadPatience);
  EXPECT_EQ(borrower_.events.Fate(borrower_.Store(kLease, 0, 0, kPiece)).code(), absl::StatusCode::kUnavailable);
  borrower_.transport->Close(kLease);
  donor_.nccl.Unmute();
}

TEST_F(NcclFaultTest, AbandoningOneLeaseDoesNotCostTheOthersOfALivingDonor) {
  absl::Notification hold;
  donor_.nccl.BeforeSends([&] { hold.WaitForNotification(); });
  const Ticket load = LoadBoth();
  borrower_.transport->Abandon(kLease);
  hold.Notify();
  EXPECT_THAT(borrower_.transport->Await(load), ElementsAre(kLease));
  donor_.nccl.BeforeSends(nullptr);
}

TEST_F(NcclFaultTest, AbandoningOneLeaseDoesNotCostWhatIsNotAnnouncedOfOthers) {
  absl::Notification gives, hold;
  borrower_.nccl.BeforeTransfers([&] {
    if (!gives.HasBeenNotified()) gives.Notify();
    hold.WaitForNotification();
  });
  const Ticket announced = borrower_.Load(kLease, 0, kPiece, 0);
  gives.WaitForNotification();
  const Ticket both = LoadBoth(), other = borrower_.Load(kOther, 0, kPiece, 2 * kMiB);
  borrower_.transport->Abandon(kLease);
  hold.Notify();
  for (const Ticket load : {announced, both}) EXPECT_THAT(borrower_.transport->Await(load), ElementsAre(kLease));
  EXPECT_THAT(borrower_.transport->Await(other), IsEmpty());
  EXPECT_EQ(borrower_.nccl.num_made(), 1);
  borrower_.nccl.BeforeTransfers(nullptr);
}

TEST_F(NcclFaultTest, WhatIsAbandonedDoesNotWaitForTheNextCommunicator) {
  donor_.nccl.Mute();
  borrower_.nccl.FailAt(1);
  EXPECT_THAT(borrower_.LoadNow(kLease, 0, kPiece, 0), ElementsAre(kLease));
  const absl::Time begin = absl::Now();
  const Ticket load = borrower_.Load(kLease, 0, kPiece, 0);
  borrower_.transport->Abandon(kLease);
  EXPECT_THAT(borrower_.transport->Await(load), ElementsAre(kLease));
  EXPECT_LT(absl::Now() - begin, Transport::kReadPatience);
  donor_.nccl.Unmute();
}

// NCCL aborts a communicator by joining threads and freeing memory, which may wait for all that the device does.
TEST_F(NcclFaultTest, AFenceWaitsNeitherForABorrowerThatDoesNotSendNorForNcclToAbort) {
  absl::Notification hold, abort, fenced;
  borrower_.nccl.BeforeSends([&] { hold.WaitForNotification(); });
  donor_.nccl.BeforeAborts([&] { abort.WaitForNotification(); });
  borrower_.Fill(kPiece, Pattern(kPiece, 6));
  const StorePiece pieces[] = {{kLease, 0, borrower_.At(0), kPiece}, {kOther, kPiece, borrower_.At(kPiece), kPiece}};
  const std::vector<Ticket> stores = borrower_.transport->Store(pieces, {});
  EXPECT_TRUE(Eventually([&] { return donor_.nccl.num_groups() == 1; }));
  std::thread owner([&] {
    donor_.transport->Fence(kLease);
    fenced.Notify();
  });
  EXPECT_TRUE(fenced.WaitForNotificationWithTimeout(RecordingTransportEvents::kPatience));
  abort.Notify();
  owner.join();
  donor_.Fill(0, Pattern(kPiece, 5));  // the owner's
  hold.Notify();
  EXPECT_EQ(borrower_.events.Fate(stores[0]).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(donor_.Read(0, kPiece), Pattern(kPiece, 5));
  EXPECT_EQ(borrower_.events.Fate(stores[1]), absl::OkStatus());
  EXPECT_EQ(donor_.Read(kNcclLeaseBytes + kPiece, kPiece), Pattern(kPiece, 6));
  ExpectThatLoadsWork(kOther, 2);
  EXPECT_EQ(borrower_.nccl.num_made(), 1) << "nothing else of the borrower's is lost";
  borrower_.nccl.BeforeSends(nullptr);
  donor_.nccl.BeforeAborts(nullptr);
}

TEST_F(NcclFaultTest, AReleasedLeaseIsTheOwnersThoughAStoreIsStillToCome) {
  absl::Notification hold;
  borrower_.nccl.BeforeSends([&] { hold.WaitForNotification(); });
  const Ticket store = borrower_.Store(kLease, 0, 0, kPiece);
  EXPECT_TRUE(Eventually([&] { return donor_.nccl.num_groups() == 1; }));
  borrower_.transport->SendRelease(kLease);
  EXPECT_TRUE(donor_.events.WaitFor([&] { return donor_.events.released.contains(kLease); }));
  donor_.Fill(0, Pattern(kPiece, 5));  // the owner's
  hold.Notify();
  EXPECT_FALSE(borrower_.events.Fate(store).ok());
  borrower_.nccl.BeforeSends(nullptr);
  ExpectThatLoadsWork(kOther, 2);
  EXPECT_EQ(donor_.Read(0, kPiece), Pattern(kPiece, 5));
}

// A donor whose device is about to copy what was stored, and goes on when it is told.
class NcclLandingTest : public testing::Test {
 protected:
  NcclLandingTest() {
    (void)Lend(donor_, borrower_, kLease, 0);
    borrower_.Fill(0, Pattern(kPiece, 4));
    store_ = borrower_.Store(kLease, 0, 0, kPiece);
    copies_.WaitForNotification();
  }
  void ExpectThatItWaitsForTheCopy(const std::function<void()>& act, absl::Notification& done) {
    std::thread owner(act);
    EXPECT_FALSE(done.WaitForNotificationWithTimeout(absl::Milliseconds(20)));
    goes_on_.Notify();
    done.WaitForNotification();
    EXPECT_EQ(donor_.Read(0, kPiece), Pattern(kPiece, 4)) << "it is copied by then";
    owner.join();
  }

  ShmFolder folder_;
  absl::Notification copies_, goes_on_;
  NcclNode donor_{folder_, "donor", {.on_copy = [this](const backend::cuda::DeviceCopy&) {
                    if (!copies_.HasBeenNotified()) copies_.Notify();
                    goes_on_.WaitForNotification();
                  }}};
  NcclNode borrower_{folder_, "borrower"};
  Ticket store_;
};

TEST_F(NcclLandingTest, AFenceDoesNotReturnWhileAStoreIsBeingWritten) {
  absl::Notification fenced;
  ExpectThatItWaitsForTheCopy(
      [&] {
        donor_.transport->Fence(kLease);
        fenced.Notify();
      },
      fenced);
}

TEST_F(NcclLandingTest, AReleaseIsNotToldWhileAStoreIsBeingWritten) {
  absl::Notification released;
  ExpectThatItWaitsForTheCopy(
      [&] {
        borrower_.transport->SendRelease(kLease);
        EXPECT_TRUE(donor_.events.WaitFor([&] { return donor_.events.released.contains(kLease); }));
        released.Notify();
      },
      released);
}

TEST_F(NcclLandingTest, WhatIsNotCopiedIsNotStored) {
  donor_.driver.Lose();
  goes_on_.Notify();
  EXPECT_FALSE(borrower_.events.Fate(store_).ok());
}

TEST_F(NcclFaultTest, ADonorThatDiesEndsEverythingAtOnce) {
  donor_.nccl.Mute();
  const absl::Time begin = absl::Now();
  const Ticket load = LoadBoth(), store = borrower_.Store(kLease, 0, 0, kPiece);
  donor_.transport.reset();
  EXPECT_THAT(borrower_.transport->Await(load), testing::UnorderedElementsAre(kLease, kOther));
  EXPECT_EQ(borrower_.events.Fate(store).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(borrower_.events.WaitFor([&] { return borrower_.events.donor_gone.contains(kOther); }));
  EXPECT_LT(absl::Now() - begin, Transport::kReadPatience);
}

TEST_F(NcclFaultTest, ABorrowerThatDiesLeavesTheGrantToBeOpenedAgain) {
  borrower_.nccl.Mute();
  (void)borrower_.Store(kLease, 0, 0, kPiece);
  borrower_.transport.reset();
  EXPECT_TRUE(donor_.events.WaitFor([&] { return donor_.events.borrower_gone.contains(kLease); }));
  EXPECT_TRUE(donor_.events.WaitFor([&] { return donor_.events.borrower_gone.contains(kOther); }));
  const absl::Time begin = absl::Now();
  donor_.transport->Fence(kLease);
  EXPECT_LT(absl::Now() - begin, Transport::kReadPatience);
}

// A store, a load and a stream; whatever of it succeeds is right.
class NcclFailingCallTest : public testing::Test {
 protected:
  void Use(NcclNode& donor, NcclNode& borrower, uint64_t seed) {
    borrower.Fill(0, Pattern(kPiece, seed));
    const bool stored = borrower.events.Fate(borrower.Store(kLease, 0, 0, kPiece)).ok();
    const bool loaded = borrower.LoadNow(kLease, 0, kPiece, kMiB).empty();
    if (stored && loaded) {
      EXPECT_EQ(borrower.Read(kMiB, kPiece), Pattern(kPiece, seed));
    }
    const auto stream = borrower.transport->BeginStream(
        {.sources = {{kLease, 0, {borrower.At(2 * kMiB), borrower.At(2 * kMiB + kPiece)}}},
         .num_layers = 3,
         .slice_bytes = kPiece / 4},
        {});
    for (int64_t layer = 0; layer < 3; ++layer) {
      stream->Arrived(layer).Wait();
      stream->Release(layer, {});
    }
    if (stream->End().empty() && stored) {
      const std::vector<std::byte> kv = Pattern(kPiece, seed);
      EXPECT_EQ(borrower.Read(2 * kMiB, kPiece / 4),
                std::vector<std::byte>(kv.begin() + kPiece / 2, kv.begin() + 3 * kPiece / 4));
    }
  }
  // `fails`: whose n-th call. Until a run makes fewer calls than that; most are Settled and Passed, over and over.
  template <typename Fails>
  void FailEachCall(Fails fails) {
    bool failed = true;
    for (int64_t nth = 1; failed; nth += nth < 40 ? 1 : 9) {
      ShmFolder folder;
      NcclNode donor(folder, "donor"), borrower(folder, "borrower");
      auto& failing = fails(donor, borrower);
      failing.FailAt(nth);
      const OpenSpec spec = Granted(donor, borrower, kLease, 0);
      if (!OpenNow(borrower, spec).ok()) {
        borrower.transport->Close(kLease);
        const auto again = OpenNow(borrower, spec);
        EXPECT_TRUE(again.ok()) << nth << ": " << again.status();
      }
      Use(donor, borrower, nth);
      failed = failing.HasFailed();
      if (!failed) failing.FailAt(0);
      // A failure as Use ended may cost this load its communicator, and none after it.
      const bool lost = !borrower.LoadNow(kLease, 0, kPiece, kMiB).empty();
      EXPECT_TRUE(!lost || failing.HasFailed()) << nth;
      EXPECT_THAT(borrower.LoadNow(kLease, 0, kPiece, kMiB), IsEmpty()) << nth;
    }
  }
};

TEST_F(NcclFailingCallTest, OfTheBorrowersNccl) {
  FailEachCall([](NcclNode&, NcclNode & borrower) -> auto& { return borrower.nccl; });
}

TEST_F(NcclFailingCallTest, OfTheDonorsNccl) {
  FailEachCall([](NcclNode & donor, NcclNode&) -> auto& { return donor.nccl; });
}

TEST_F(NcclFailingCallTest, OfTheBorrowersDriver) {
  FailEachCall([](NcclNode&, NcclNode & borrower) -> auto& { return borrower.driver; });
}

TEST_F(NcclFailingCallTest, OfTheDonorsDriver) {
  FailEachCall([](NcclNode & donor, NcclNode&) -> auto& { return donor.driver; });
}

// A device that is lost answers nothing any more: all that is asked of it ends, and is not believed.
TEST_F(NcclFailingCallTest, OfADeviceThatIsLost) {
  for (int64_t nth = 1; nth < 60; nth += 3) {
    ShmFolder folder;
    NcclNode donor(folder, "donor"), borrower(folder, "borrower");
    (void)Lend(donor, borrower, kLease, 0);
    (nth % 2 == 0 ? donor : borrower).driver.LoseAt(nth);
    Use(donor, borrower, nth);
  }
}

}  // namespace
}  // namespace swiftcache::engine::transport::nccl
