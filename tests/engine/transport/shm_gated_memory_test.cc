// SPDX-License-Identifier: Apache-2.0
// Memory that takes long to map, to show and to unmap: nobody waits for it but who wants it.
#include <gtest/gtest.h>

#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "engine/transport/shm_message.h"
#include "tests/engine/transport/raw_peer.h"
#include "tests/engine/transport/staging_memory.h"
#include "tests/engine/transport/test_lease.h"
#include "tests/engine/transport/transport_harness.h"
#include "tests/fakes/gated_memory.h"

namespace swiftcache::engine::transport {
namespace {

using kv::LeaseId;

constexpr LeaseId kOther{8};

// The borrower has kOther, and hangs while it maps kLease.
class ShmSlowMapTest : public testing::Test {
 protected:
  void SetUp() override {
    (void)Lend(donor_, borrower_, kOther, 4 * kMiB, kMiB, 4096);
    gates_.map_lease.Close();
    borrower_.transport->Open(Granted(donor_, borrower_, kLease, 0, kMiB, 4096));
    ASSERT_TRUE(gates_.map_lease.WaitUntilSomebodyHangs());
  }
  ~ShmSlowMapTest() override {
    gates_.map_lease.Open();
    gates_.unmap_lease.Open();
  }

  bool HearsThatOtherIsRevoked() {
    donor_.transport->SendRevoke(kOther, absl::Milliseconds(50));
    return borrower_.events.WaitFor([&] { return borrower_.events.revoked.contains(kOther); });
  }
  // It is mapped now, and others are heard while it is unmapped. REQUIRES: unmap_lease is closed.
  void ExpectUnmappedAndNeverOpen() {
    gates_.map_lease.Open();
    EXPECT_TRUE(gates_.unmap_lease.WaitUntilSomebodyHangs());
    EXPECT_TRUE(HearsThatOtherIsRevoked());
    gates_.unmap_lease.Open();
    borrower_.transport->Stop();
    EXPECT_FALSE(borrower_.events.opened.contains(kLease));
  }

  MemoryGates gates_;
  ShmFolder folder_;
  Node donor_{folder_, {.name = "donor"}}, borrower_{folder_, {.name = "borrower", .gates = &gates_}};
};

TEST_F(ShmSlowMapTest, RevocationsAreHeardMeanwhileOfOtherLeasesAndOfThatOne) {
  EXPECT_TRUE(HearsThatOtherIsRevoked());
  donor_.transport->SendRevoke(kLease, absl::Milliseconds(50));
  EXPECT_TRUE(borrower_.events.WaitFor([&] { return borrower_.events.revoked.contains(kLease); }));
  gates_.map_lease.Open();
  const absl::StatusOr<LeaseView> view = borrower_.events.Opening(kLease);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_TRUE(view->Holds());
}

TEST_F(ShmSlowMapTest, ALeaseThatIsFencedMeanwhileIsNeverOpenAndUnmappedAtOnce) {
  gates_.unmap_lease.Close();
  donor_.transport->Fence(kLease);
  EXPECT_EQ(borrower_.events.Opening(kLease).status().code(), absl::StatusCode::kUnavailable);
  ExpectUnmappedAndNeverOpen();
  EXPECT_FALSE(borrower_.events.donor_gone.contains(kLease));
}

TEST_F(ShmSlowMapTest, ALeaseThatIsClosedMeanwhileIsUnmappedAndNothingMoreIsHeardOfIt) {
  gates_.unmap_lease.Close();
  borrower_.transport->Close(kLease);
  EXPECT_TRUE(donor_.events.WaitFor([&] { return donor_.events.borrower_gone.contains(kLease); }));
  ExpectUnmappedAndNeverOpen();
}

// The donor has lent kOther; each test says where it hangs.
class ShmSlowDonorTest : public testing::Test {
 protected:
  void SetUp() override { (void)Lend(donor_, borrower_, kOther, 4 * kMiB, kMiB, 4096); }
  ~ShmSlowDonorTest() override {
    for (Gate* gate : {&gates_.map_staging, &gates_.show, &gates_.unmap_staging, &donor_.events.borrower_opens}) {
      gate->Open();
    }
  }

  // The donor hangs at the gate with kLease, which its borrower wants to open.
  void OpenUntilHung(Gate& gate) {
    gate.Close();
    late_.transport->Open(Granted(donor_, late_, kLease, 0, kMiB, 4096));
    ASSERT_TRUE(gate.WaitUntilSomebodyHangs());
  }
  void ExpectFences(LeaseId lease) {
    absl::Notification fenced;
    std::thread fences([&] {
      donor_.transport->Fence(lease);
      fenced.Notify();
    });
    EXPECT_TRUE(fenced.WaitForNotificationWithTimeout(absl::Seconds(10)));
    if (!fenced.HasBeenNotified()) gates_.unmap_staging.Open();
    fences.join();
  }
  void ExpectHears(LeaseId lease) {
    borrower_.transport->SendRenewal(lease, 7);
    EXPECT_TRUE(donor_.events.WaitFor([&] { return donor_.events.renewals.contains(lease); }));
  }
  bool IsGone(LeaseId lease) {
    return donor_.events.WaitFor([&] { return donor_.events.borrower_gone.contains(lease); });
  }

  MemoryGates gates_;
  ShmFolder folder_;
  Node donor_{folder_, {.name = "donor", .gates = &gates_}};
  Node borrower_{folder_, {.name = "borrower"}}, late_{folder_, {.name = "late"}};
};

TEST_F(ShmSlowDonorTest, FencesAndOtherChannelsGoOnWhileStagingMemoryIsMapped) {
  (void)Lend(donor_, borrower_, LeaseId(9), 6 * kMiB, kMiB, 4096);
  ASSERT_NO_FATAL_FAILURE(OpenUntilHung(gates_.map_staging));
  ExpectHears(kOther);
  ExpectFences(kLease);
  ExpectFences(kOther);
  EXPECT_TRUE(borrower_.events.WaitFor([&] { return borrower_.events.donor_gone.contains(kOther); }));
  gates_.unmap_staging.Close();
  gates_.map_staging.Open();
  EXPECT_TRUE(gates_.unmap_staging.WaitUntilSomebodyHangs());
  ExpectHears(LeaseId(9));
  gates_.unmap_staging.Open();
  EXPECT_EQ(late_.events.Opening(kLease).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(donor_.events.WaitFor([&] { return !donor_.events.borrower_opened.contains(kLease); }));
}

TEST_F(ShmSlowDonorTest, FencesAndOtherChannelsGoOnWhileALeaseIsShown) {
  ASSERT_NO_FATAL_FAILURE(OpenUntilHung(gates_.show));
  ExpectHears(kOther);
  ExpectFences(kLease);
  ExpectFences(kOther);
  gates_.show.Open();
  EXPECT_EQ(late_.events.Opening(kLease).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ShmSlowDonorTest, FencesAndOtherChannelsGoOnWhileStagingMemoryIsUnmapped) {
  (void)Lend(donor_, borrower_, LeaseId(9), 6 * kMiB, kMiB, 4096);
  (void)Lend(donor_, late_, kLease, 0, kMiB, 4096);
  gates_.unmap_staging.Close();
  late_.transport->Close(kLease);
  EXPECT_TRUE(IsGone(kLease));
  EXPECT_TRUE(gates_.unmap_staging.WaitUntilSomebodyHangs());
  ExpectFences(kLease);
  ExpectFences(kOther);
  borrower_.transport->SendRelease(LeaseId(9));
  EXPECT_TRUE(donor_.events.WaitFor([&] { return donor_.events.released.contains(LeaseId(9)); }));
}

TEST_F(ShmSlowDonorTest, ABorrowerThatGoesMeanwhileIsGoneAndMayComeAgain) {
  for (Gate* gate : {&gates_.map_staging, &gates_.show, &donor_.events.borrower_opens}) {
    ASSERT_NO_FATAL_FAILURE(OpenUntilHung(*gate));
    late_.transport->Close(kLease);
    EXPECT_TRUE(IsGone(kLease));
    gates_.unmap_staging.Close();
    gate->Open();
    EXPECT_TRUE(gates_.unmap_staging.WaitUntilSomebodyHangs());
    gates_.unmap_staging.Open();
    donor_.transport->Fence(kLease);
    const absl::StatusOr<LeaseView> view = OpenNow(late_, Granted(donor_, late_, kLease, 0, kMiB, 4096));
    EXPECT_TRUE(view.ok()) << view.status();
    late_.transport->Close(kLease);
    donor_.transport->Fence(kLease);
    auto hold = donor_.events.Hold();
    donor_.events.borrower_gone.clear();
  }
}

TEST_F(ShmSlowDonorTest, ARevocationBeforeTheGrantIsSentComesAfterIt) {
  ASSERT_NO_FATAL_FAILURE(OpenUntilHung(donor_.events.borrower_opens));
  donor_.transport->SendRevoke(kLease, absl::Milliseconds(50));
  donor_.events.borrower_opens.Open();
  const absl::StatusOr<LeaseView> view = late_.events.Opening(kLease);
  EXPECT_TRUE(view.ok()) << view.status();
  EXPECT_TRUE(late_.events.WaitFor([&] { return late_.events.revoked.contains(kLease); }));
}

TEST_F(ShmSlowDonorTest, AStoreBeforeTheGrantCutsTheChannel) {
  gates_.map_staging.Close();
  (void)Granted(donor_, borrower_, kLease, 0, kMiB, 4096);
  GoodStaging staging;
  RawPeer peer(donor_.transport->channel());
  peer.SayHello(staging.fd);
  ASSERT_TRUE(gates_.map_staging.WaitUntilSomebodyHangs());
  peer.Say(ShmStore{.ticket = 1, .offset = 0, .bytes = 1, .staging_offset = 0});
  EXPECT_TRUE(peer.IsCut());
  EXPECT_TRUE(IsGone(kLease));
}

}  // namespace
}  // namespace swiftcache::engine::transport
