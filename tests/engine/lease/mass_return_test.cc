// SPDX-License-Identifier: Apache-2.0
// A donor whose arena is lent in as many leases as one of 80 GB, all of which come back at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "tests/engine/lease/donor_harness.h"

namespace swiftcache::engine::lease {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The coordinator's thread looks before each message, of which each lease sends one.
TEST(MassReturnTest, BeforeTheFirstDeadlineALookForWhatIsOverdueCostsTheSameHoweverMuchIsLent) {
  constexpr int64_t kLeases = 2'000, kLooks = 100'000;
  Donor donor({.instance_id = "summer-1", .num_blocks = kLeases, .block_bytes = 4096, .revoke_deadline = kDeadline});
  for (int64_t i = 0; i < kLeases; ++i) Lend(donor, MakeLease(i + 1, i, 1));
  donor.RevokeAll("the engine ends", kStart);
  const std::clock_t begun = std::clock();
  for (int64_t i = 0; i < kLooks; ++i) donor.FenceOverdue(kStart + kDeadline / 2);
  EXPECT_LT(static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC, 1) << "of this process's CPU time";
  EXPECT_THAT(donor.Held(), SizeIs(kLeases));
  donor.FenceOverdue(kStart + kDeadline);
  EXPECT_THAT(donor.Held(), IsEmpty());
}

TEST(MassReturnTest, EachLeaseIsFencedAtItsOwnDeadlineWhicheverIsFirst) {
  Donor donor = NewDonor();
  Lend(donor, MakeLease(1, 90)), Lend(donor, MakeLease(2, 80)), Lend(donor, MakeLease(3, 70));
  donor.Revoke(kv::LeaseId(2), "operator", kStart);
  donor.RevokeAll("the engine ends", kStart, absl::Seconds(5));
  donor.TakeActions();
  donor.BorrowerReleased(kv::LeaseId(2), kStart);
  donor.TakeActions();
  donor.FenceOverdue(kStart + kDeadline);
  EXPECT_THAT(Take(donor), IsEmpty());
  const absl::Time need = kStart + absl::Seconds(1);
  donor.Hasten(1, need);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 3 in 50ms"));
  donor.FenceOverdue(need + kDeadline);
  EXPECT_THAT(Take(donor), ElementsAre("fence 3", "take 3 fenced", "FENCED 3"));
  donor.FenceOverdue(kStart + absl::Seconds(5));
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1 fenced", "FENCED 1"));
}

}  // namespace
}  // namespace swiftcache::engine::lease
