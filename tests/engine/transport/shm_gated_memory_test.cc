// SPDX-License-Identifier: Apache-2.0
// Memory that takes long to map: nobody waits for it but who wants it.
#include <gtest/gtest.h>

#include "absl/time/time.h"
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
  gates_.map_lease.Open();
  EXPECT_TRUE(gates_.unmap_lease.WaitUntilSomebodyHangs());
  EXPECT_TRUE(HearsThatOtherIsRevoked());
  gates_.unmap_lease.Open();
  borrower_.transport->Stop();
  EXPECT_FALSE(borrower_.events.opened.contains(kLease));
  EXPECT_FALSE(borrower_.events.donor_gone.contains(kLease));
}

TEST_F(ShmSlowMapTest, ALeaseThatIsClosedMeanwhileIsUnmappedAndNothingMoreIsHeardOfIt) {
  gates_.unmap_lease.Close();
  borrower_.transport->Close(kLease);
  EXPECT_TRUE(donor_.events.WaitFor([&] { return donor_.events.borrower_gone.contains(kLease); }));
  gates_.map_lease.Open();
  EXPECT_TRUE(gates_.unmap_lease.WaitUntilSomebodyHangs());
  EXPECT_TRUE(HearsThatOtherIsRevoked());
  gates_.unmap_lease.Open();
  borrower_.transport->Stop();
  EXPECT_FALSE(borrower_.events.opened.contains(kLease));
}

}  // namespace
}  // namespace swiftcache::engine::transport
