// SPDX-License-Identifier: Apache-2.0
// A pair with much to say at once, none of which may cost the channel, and with it all leases of the pair.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/time/clock.h"
#include "engine/transport/message_limit.h"
#include "tests/engine/transport/nccl/nccl_harness.h"

namespace swiftcache::engine::transport::nccl {
namespace {

class NcclCrowdTest : public testing::Test {
 protected:
  static constexpr int64_t kBytes = kNcclArenaBytes / kMaxNcclLeases;  // of each
  // Opens them all at once, as a borrower does that hears of many.
  void LendMany(int64_t leases = 900) {
    for (int64_t i = 0; i < leases; ++i) {
      specs_.push_back(Granted(donor_, borrower_, kv::LeaseId(100 + i), i * kBytes, kBytes));
    }
    for (const OpenSpec& spec : specs_) borrower_.transport->Open(spec);
    for (const OpenSpec& spec : specs_) ASSERT_TRUE(borrower_.events.Opening(spec.lease).ok()) << spec.lease;
  }

  ShmFolder folder_;
  NcclNode donor_{folder_, "donor"}, borrower_{folder_, "borrower"};
  std::vector<OpenSpec> specs_;
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

TEST_F(NcclCrowdTest, ManyLeasesAreOpenedAtOnce) { LendMany(); }

TEST_F(NcclCrowdTest, ManyLeasesAreRenewedAtOnce) {
  LendMany();
  for (int64_t i = 0; i < 2; ++i) {
    for (const OpenSpec& spec : specs_) borrower_.transport->SendRenewal(spec.lease, i);
  }
  for (const OpenSpec& spec : specs_) {
    ASSERT_TRUE(donor_.events.WaitFor([&] { return donor_.events.renewals[spec.lease] == 2; })) << spec.lease;
  }
}

TEST_F(NcclCrowdTest, ManyLeasesAreRevokedAtOnce) {
  LendMany();
  for (const OpenSpec& spec : specs_) donor_.transport->SendRevoke(spec.lease, absl::Seconds(1));
  for (const OpenSpec& spec : specs_) {
    ASSERT_TRUE(borrower_.events.WaitFor([&] { return borrower_.events.revoked.contains(spec.lease); })) << spec.lease;
  }
  EXPECT_TRUE(HoldsNow(borrower_.events, [&] { return borrower_.events.donor_gone.empty(); }));
}

// A donor's leases are all in one message, and the last of them has room for more pieces than one.
TEST_F(NcclCrowdTest, AStreamMayReadAllLeasesThatADonorCanLend) {
  const std::vector<std::byte> kv = Pattern(kNcclArenaBytes, 1);
  donor_.Fill(0, kv);
  LendMany(kMaxNcclLeases);
  StreamSpec spec = {.num_layers = 2, .slice_bytes = kBytes / 4};
  const auto add = [&](const OpenSpec& lease, int64_t offset) {
    const auto slot = static_cast<int64_t>(2 * spec.sources.size()) * spec.slice_bytes;
    spec.sources.push_back({lease.lease, offset, {borrower_.At(slot), borrower_.At(slot + spec.slice_bytes)}});
  };
  for (const OpenSpec& lease : specs_) add(lease, 0);
  for (const OpenSpec* lease : {&specs_.front(), &specs_.back()}) add(*lease, kBytes / 2);
  const auto stream = borrower_.transport->BeginStream(spec, {});
  for (int64_t layer = 0; layer < 2; ++layer) stream->Release(layer, {});
  EXPECT_THAT(stream->End(), testing::IsEmpty());
  for (int64_t i = 0; i < kMaxNcclLeases; ++i) {
    const auto begin = kv.begin() + i * kBytes;
    ASSERT_EQ(borrower_.Read(i * kBytes / 2, kBytes / 2), std::vector<std::byte>(begin, begin + kBytes / 2)) << i;
  }
  const auto rest = kv.begin() + kBytes / 2;
  EXPECT_EQ(borrower_.Read(kMaxNcclLeases * kBytes / 2, kBytes / 2), std::vector<std::byte>(rest, rest + kBytes / 2));
}

// A channel's messages keep their order, and what is closed while it is being opened is nobody's.
TEST_F(NcclCrowdTest, ALeaseThatIsClosedWhileItIsOpenedIsGoneAtItsDonor) {
  (void)Lend(donor_, borrower_, kLease, 0);
  // Two messages each: however late the donor reads them, no second of its own has too many.
  constexpr int64_t kRounds = MessageLimit::kMostASecond * 9 / 20;
  for (int64_t i = 0; i < kRounds; ++i) {
    const OpenSpec spec = Granted(donor_, borrower_, kv::LeaseId(100 + i), 0);
    borrower_.transport->Open(spec);
    for (const absl::Time close = absl::Now() + absl::Microseconds(i % 100); absl::Now() < close;) {
    }
    borrower_.transport->Close(spec.lease);
    absl::SleepFor(absl::Milliseconds(1));  // so that the donor waits for the next
  }
  EXPECT_TRUE(Eventually([&] {
    return HoldsNow(donor_.events, [&] {  // all but that which stays open
      return donor_.events.borrower_gone.size() + 1 == donor_.events.borrower_opened.size();
    });
  }));
}

}  // namespace
}  // namespace swiftcache::engine::transport::nccl
