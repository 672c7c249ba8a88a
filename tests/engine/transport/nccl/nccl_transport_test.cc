// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/nccl/nccl_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "engine/transport/nccl/nccl_message.h"
#include "tests/engine/transport/nccl/nccl_harness.h"

namespace swiftcache::engine::transport::nccl {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class NcclTransportTest : public testing::Test {
 protected:
  ShmFolder folder_;
  NcclNode donor_{folder_, "donor"}, borrower_{folder_, "borrower"};
};

TEST_F(NcclTransportTest, ALeaseOpensAndNothingOfItIsMapped) {
  const LeaseView view = Lend(donor_, borrower_, kLease, 0);
  EXPECT_FALSE(view.base);
  EXPECT_EQ(view.bytes, kNcclLeaseBytes);
  EXPECT_TRUE(view.Holds());
  EXPECT_EQ(view.reads, nullptr);
  EXPECT_FALSE(borrower_.transport->maps());
  EXPECT_TRUE(donor_.events.WaitFor([&] { return donor_.events.borrower_opened.contains(kLease); }));
}

TEST_F(NcclTransportTest, ALoadBringsWhatLiesThere) {
  const std::vector<std::byte> kv = Pattern(kPiece, 1);
  donor_.Fill(3 * backend::cuda::kUnit + kPiece, kv);
  (void)Lend(donor_, borrower_, kLease, 3 * backend::cuda::kUnit);
  EXPECT_THAT(borrower_.LoadNow(kLease, kPiece, kPiece, 7 * kKiB), IsEmpty());
  EXPECT_EQ(borrower_.Read(7 * kKiB, kPiece), kv);
  EXPECT_EQ(borrower_.transport->stats().loaded_bytes, kPiece);
  EXPECT_EQ(donor_.transport->stats().borrowers_read, kPiece);
}

TEST_F(NcclTransportTest, TheRateOfReadsIsMeasured) {
  (void)Lend(donor_, borrower_, kLease, 0);
  EXPECT_EQ(borrower_.transport->read_rate(/*in_place=*/false), std::nullopt);
  const LoadPiece piece{kLease, 0, kNcclLeaseBytes, borrower_.At(0)};
  for (int64_t i = 0; i < LoadRate::kLeastLoads; ++i) {
    const Ticket load = borrower_.transport->Load(std::vector(LoadRate::kLeastBytes / kNcclLeaseBytes, piece), {});
    EXPECT_THAT(borrower_.transport->Await(load), IsEmpty());
  }
  EXPECT_GT(borrower_.transport->read_rate(/*in_place=*/false).value(), 0);
}

TEST_F(NcclTransportTest, AStoreLiesInTheDonorsMemoryOnceItIsAnswered) {
  (void)Lend(donor_, borrower_, kLease, backend::cuda::kUnit);
  const std::vector<std::byte> kv = Pattern(kPiece, 2);
  borrower_.Fill(0, kv);
  EXPECT_EQ(borrower_.events.Fate(borrower_.Store(kLease, kPiece, 0, kPiece)), absl::OkStatus());
  EXPECT_EQ(donor_.Read(backend::cuda::kUnit + kPiece, kPiece), kv);
  EXPECT_EQ(donor_.transport->stats().received_bytes, kPiece);
  EXPECT_THAT(borrower_.LoadNow(kLease, kPiece, kPiece, 2 * kMiB), IsEmpty());
  EXPECT_EQ(borrower_.Read(2 * kMiB, kPiece), kv);
}

TEST_F(NcclTransportTest, StoresOfOneLeaseKeepTheirOrder) {
  (void)Lend(donor_, borrower_, kLease, 0);
  std::vector<StorePiece> pieces;
  for (int64_t i = 0; i < 8; ++i) {
    borrower_.Fill(i * kPiece, Pattern(kPiece, i));
    pieces.push_back({kLease, 0, borrower_.At(i * kPiece), kPiece});
  }
  for (const Ticket ticket : borrower_.transport->Store(pieces, {})) {
    EXPECT_EQ(borrower_.events.Fate(ticket), absl::OkStatus());
  }
  EXPECT_EQ(donor_.Read(0, kPiece), Pattern(kPiece, 7));
}

TEST_F(NcclTransportTest, ARevocationIsHeardWhileTheCommunicatorForms) {
  borrower_.nccl.Mute();
  borrower_.transport->Open(Granted(donor_, borrower_, kLease, 0));
  ASSERT_TRUE(donor_.events.WaitFor([&] { return donor_.events.borrower_opened.contains(kLease); }));
  donor_.transport->SendRevoke(kLease, absl::Seconds(3));
  EXPECT_TRUE(borrower_.events.WaitFor([&] { return borrower_.events.revoked.contains(kLease); }));
  borrower_.nccl.Unmute();
  EXPECT_TRUE(borrower_.events.Opening(kLease).ok());
}

TEST_F(NcclTransportTest, AdjacentPiecesOfALoadAreOneRunAndOneMessageIsEnough) {
  donor_.Fill(0, Pattern(4 * kPiece, 3));
  (void)Lend(donor_, borrower_, kLease, 0);
  std::vector<LoadPiece> pieces;
  for (int64_t i = 0; i < 4; ++i) pieces.push_back({kLease, i * kPiece, kPiece, borrower_.At(i * kPiece)});
  const int64_t groups = borrower_.nccl.num_groups();
  EXPECT_THAT(borrower_.transport->Await(borrower_.transport->Load(pieces, {})), IsEmpty());
  EXPECT_EQ(borrower_.nccl.num_groups(), groups + 1);
  EXPECT_EQ(borrower_.Read(0, 4 * kPiece), Pattern(4 * kPiece, 3));
}

TEST_F(NcclTransportTest, AGroupIsInItsStreamOnlyOnceNcclHasSettled) {
  (void)Lend(donor_, borrower_, kLease, 0);
  for (int64_t i = 0; i < 20; ++i) {
    donor_.Fill(0, Pattern(kPiece, i));
    EXPECT_THAT(borrower_.LoadNow(kLease, 0, kPiece, 0), IsEmpty());
    EXPECT_EQ(borrower_.Read(0, kPiece), Pattern(kPiece, i)) << i;
  }
}

// A read waits for kReadPatience, and a communicator that is given up connects anew: for ever, if the first read had to.
TEST_F(NcclTransportTest, HowLongTheRanksTakeToConnectIsNoMatterOfReads) {
  for (NcclNode* node : {&donor_, &borrower_}) node->nccl.ConnectIn(Transport::kReadPatience * 3 / 2);
  donor_.Fill(0, Pattern(kPiece, 6));
  (void)Lend(donor_, borrower_, kLease, 0);
  EXPECT_THAT(borrower_.LoadNow(kLease, 0, kPiece, 0), IsEmpty());
  EXPECT_EQ(borrower_.Read(0, kPiece), Pattern(kPiece, 6));
  EXPECT_EQ(borrower_.events.Fate(borrower_.Store(kLease, 0, 0, kPiece)), absl::OkStatus());
  EXPECT_EQ(borrower_.nccl.num_made(), 1);
}

TEST_F(NcclTransportTest, ALoadBeginsWhenItsFenceHasPassed) {
  donor_.Fill(0, Pattern(kPiece, 4));
  (void)Lend(donor_, borrower_, kLease, 0);
  const backend::cuda::Stream stream = borrower_.driver.CreateStream().value();
  auto computed = backend::cuda::EventFence::Create(borrower_.driver).value();
  absl::Notification finish;
  ASSERT_TRUE(borrower_.driver.Launch(stream, [&] { finish.WaitForNotification(); }).ok());
  ASSERT_TRUE(computed->Record(stream).ok());
  borrower_.Fill(0, Pattern(kPiece, 5));
  const Ticket load = borrower_.transport->Load({{kLease, 0, kPiece, borrower_.At(0)}}, backend::Fence(computed));
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(borrower_.Read(0, kPiece), Pattern(kPiece, 5));
  finish.Notify();
  EXPECT_THAT(borrower_.transport->Await(load), IsEmpty());
  EXPECT_EQ(borrower_.Read(0, kPiece), Pattern(kPiece, 4));
  computed.reset();
  borrower_.driver.DestroyStream(stream);
}

TEST_F(NcclTransportTest, ALoadWhoseFenceIsOfFailedWorkEndsAllTheSame) {
  (void)Lend(donor_, borrower_, kLease, 0);
  const auto never = backend::cuda::EventFence::Create(borrower_.driver).value();
  EXPECT_THAT(borrower_.transport->Await(
                  borrower_.transport->Load({{kLease, 0, kPiece, borrower_.At(0)}}, backend::Fence(never))),
              IsEmpty());
}

TEST_F(NcclTransportTest, MessagesAboutALeaseReachTheOtherSide) {
  const LeaseView view = Lend(donor_, borrower_, kLease, 0);
  borrower_.transport->SendRenewal(kLease, 7);
  EXPECT_TRUE(donor_.events.WaitFor([&] { return donor_.events.renewals[kLease] == 1; }));
  EXPECT_EQ(donor_.events.heats[kLease], 7);
  donor_.transport->SendRenewed(kLease);
  EXPECT_TRUE(borrower_.events.WaitFor([&] { return borrower_.events.renewed[kLease] == 1; }));
  donor_.transport->SendRevoke(kLease, absl::Seconds(3));
  EXPECT_TRUE(borrower_.events.WaitFor([&] { return borrower_.events.revoked.contains(kLease); }));
  donor_.transport->Fence(kLease);
  EXPECT_TRUE(borrower_.events.WaitFor([&] { return borrower_.events.donor_gone.contains(kLease); }));
  EXPECT_FALSE(view.Holds());
}

TEST_F(NcclTransportTest, AReleasedLeaseIsFencedAndItsEndIsNoNews) {
  (void)Lend(donor_, borrower_, kLease, 0);
  borrower_.transport->SendRelease(kLease);
  EXPECT_TRUE(donor_.events.WaitFor([&] { return donor_.events.released.contains(kLease); }));
  borrower_.transport->Close(kLease);
  EXPECT_TRUE(HoldsNow(borrower_.events, [&] { return borrower_.events.donor_gone.empty(); }));
  (void)Lend(donor_, borrower_, kLease, 0);
}

TEST_F(NcclTransportTest, AClosedLeaseMayBeOpenedAgain) {
  const OpenSpec spec = Granted(donor_, borrower_, kLease, 0);
  EXPECT_TRUE(OpenNow(borrower_, spec).ok());
  borrower_.transport->Close(kLease);
  EXPECT_TRUE(donor_.events.WaitFor([&] { return donor_.events.borrower_gone.contains(kLease); }));
  EXPECT_TRUE(OpenNow(borrower_, spec).ok());
  EXPECT_EQ(borrower_.nccl.num_made(), 1) << "a communicator is dear";
}

TEST_F(NcclTransportTest, WhoeverHasNoGrantGetsNothing) {
  OpenSpec spec = Granted(donor_, borrower_, kLease, 0);
  spec.capability = "guessed";
  EXPECT_EQ(OpenNow(borrower_, spec).status().code(), absl::StatusCode::kPermissionDenied);
  borrower_.transport->Close(kLease);
  spec.capability = kCapability;
  spec.lease = kOther;
  EXPECT_EQ(OpenNow(borrower_, spec).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(donor_.nccl.num_made(), 0);
}

TEST_F(NcclTransportTest, ADonorThatIsNotThereIsOneClearError) {
  OpenSpec spec = Granted(donor_, borrower_, kLease, 0);
  spec.channel += "-nobody";
  EXPECT_EQ(OpenNow(borrower_, spec).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(NcclTransportTest, ItsProtocolIsItsKindAndTheVersionsOfItsMessagesAndOfNccl) {
  EXPECT_EQ(donor_.transport->protocol(), absl::StrCat("nccl.", kNcclVersion, ".23203"));
  const NcclNode other(folder_, "other", {}, 22705);
  EXPECT_EQ(other.transport->protocol(), absl::StrCat("nccl.", kNcclVersion, ".22705"));
}

TEST_F(NcclTransportTest, ADonorMayCallTheFolderByAnotherPath) {
  OpenSpec spec = Granted(donor_, borrower_, kLease, 0);
  spec.channel = "run/" + spec.channel.substr(spec.channel.rfind('/') + 1);  // from where the donor stands
  const absl::StatusOr<LeaseView> view = OpenNow(borrower_, spec);
  EXPECT_TRUE(view.ok()) << view.status();
}

TEST_F(NcclTransportTest, AStoreToALeaseWithoutAChannelIsAnswered) {
  EXPECT_EQ(borrower_.events.Fate(borrower_.Store(kLease, 0, 0, kPiece)).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(borrower_.LoadNow(kLease, 0, kPiece, 0), ElementsAre(kLease));
}

TEST_F(NcclTransportTest, EnginesLendToEachOther) {
  donor_.Fill(0, Pattern(kPiece, 6));
  borrower_.Fill(2 * kMiB, Pattern(kPiece, 7));
  (void)Lend(donor_, borrower_, kLease, 0);
  (void)Lend(borrower_, donor_, kOther, 2 * kMiB);
  const Ticket here = borrower_.Load(kLease, 0, kPiece, 0), there = donor_.Load(kOther, 0, kPiece, kMiB);
  EXPECT_THAT(borrower_.transport->Await(here), IsEmpty());
  EXPECT_THAT(donor_.transport->Await(there), IsEmpty());
  EXPECT_EQ(borrower_.Read(0, kPiece), Pattern(kPiece, 6));
  EXPECT_EQ(donor_.Read(kMiB, kPiece), Pattern(kPiece, 7));
}

}  // namespace
}  // namespace swiftcache::engine::transport::nccl
