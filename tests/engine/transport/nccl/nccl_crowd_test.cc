// SPDX-License-Identifier: Apache-2.0
// A pair with much to say at once, none of which may cost the channel, and with it all leases of the pair.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/time/clock.h"
#include "tests/engine/transport/nccl/nccl_harness.h"

namespace swiftcache::engine::transport::nccl {
namespace {

class NcclCrowdTest : public testing::Test {
 protected:
  ShmFolder folder_;
  NcclNode donor_{folder_, "donor"}, borrower_{folder_, "borrower"};
};

TEST_F(NcclCrowdTest, ASlowDonorIsSentNoMoreBatchesThanItTakes) {
  (void)Lend(donor_, borrower_, kLease, 0);
  donor_.nccl.Mute();
  std::vector<Ticket> stores;
  for (size_t i = 0; i < 2 * kMaxNcclBatches; ++i) stores.push_back(borrower_.Store(kLease, 0, 0, kKiB));
  EXPECT_TRUE(Eventually([&] { return donor_.nccl.num_groups() == 1; }));  // the first, which does not settle
  absl::SleepFor(absl::Milliseconds(20));                                  // nor do the others follow
  donor_.nccl.Unmute();
  for (const Ticket store : stores) EXPECT_EQ(borrower_.events.Fate(store), absl::OkStatus()) << store;
}

// A channel's messages keep their order, and what is closed while it is being opened is nobody's.
TEST_F(NcclCrowdTest, ALeaseThatIsClosedWhileItIsOpenedIsGoneAtItsDonor) {
  (void)Lend(donor_, borrower_, kLease, 0);
  for (int64_t i = 0; i < 1000; ++i) {
    const OpenSpec spec = Granted(donor_, borrower_, kv::LeaseId(100 + i), 0);
    borrower_.transport->Open(spec);
    for (const absl::Time close = absl::Now() + absl::Microseconds(i % 100); absl::Now() < close;) {
    }
    borrower_.transport->Close(spec.lease);
    absl::SleepFor(absl::Milliseconds(1));  // a borrower may not say more in a second
  }
  EXPECT_TRUE(Eventually([&] {
    return HoldsNow(donor_.events, [&] {  // all but that which stays open
      return donor_.events.borrower_gone.size() + 1 == donor_.events.borrower_opened.size();
    });
  }));
}

}  // namespace
}  // namespace swiftcache::engine::transport::nccl
