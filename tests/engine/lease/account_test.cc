// SPDX-License-Identifier: Apache-2.0
#include "engine/lease/account.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/lease/donor_harness.h"

namespace swiftcache::engine::lease {
namespace {

constexpr char kModel[] = "chat-model";

TEST(AccountsTest, AddUpToTheByteWhateverBeginsAndEnds) {
  struct Loan {
    std::string model;
    int64_t bytes = 0;
    absl::Time since;
  };
  std::mt19937 rng(7);
  Accounts accounts;
  std::vector<Loan> loans;
  std::map<std::string, absl::int128> naive;
  const auto had = [](const Loan& loan, absl::Time until) {
    return absl::int128(loan.bytes) * (absl::ToUnixMicros(until) - absl::ToUnixMicros(loan.since));
  };
  absl::Time now = kStart;
  for (int i = 0; i < 2000; ++i) {
    now += absl::Nanoseconds(rng() % 3'000'000);
    if (loans.empty() || rng() % 2 == 0) {
      loans.push_back({rng() % 2 == 0 ? "chat" : "code", static_cast<int64_t>(rng() % 100'000), now});
      accounts.Begin(loans.back().model, loans.back().bytes, now);
    } else {
      std::swap(loans[rng() % loans.size()], loans.back());
      naive[loans.back().model] += had(loans.back(), now);
      accounts.End(loans.back().model, loans.back().bytes, Ending::kNeed, rng() % 2 == 0, now);
      loans.pop_back();
    }
    if (rng() % 4 == 0) accounts.Advance(now += absl::Nanoseconds(rng() % 3'000));
  }
  accounts.Advance(now);
  for (const Loan& loan : loans) naive[loan.model] += had(loan, now);
  ASSERT_EQ(naive.size(), 2);
  for (const auto& [model, byte_micros] : naive) EXPECT_EQ(accounts.all().at(model).byte_micros, byte_micros) << model;
}

TEST(AccountsTest, EightyGibibytesForAYearFit) {
  Accounts accounts;
  accounts.Begin(kModel, int64_t{80} << 30, kStart);
  accounts.Advance(kStart + absl::Hours(24 * 365));
  EXPECT_EQ(accounts.all().at(kModel).byte_seconds(), (int64_t{80} << 30) * 24 * 365 * 3600);
}

TEST(AccountsTest, WhatIsTooMuchStopsAtTheLargest) {
  Accounts accounts;
  accounts.Begin(kModel, int64_t{4} << 40, kStart);
  accounts.Advance(kStart + absl::Hours(24 * 30));
  EXPECT_EQ(accounts.all().at(kModel).byte_seconds(), std::numeric_limits<int64_t>::max());
}

TEST(AccountsTest, TimeThatDoesNotPassCountsNothing) {
  Accounts accounts;
  accounts.Begin(kModel, 4096, kStart);
  accounts.Advance(kStart - absl::Seconds(1));
  accounts.Advance(kStart);
  EXPECT_EQ(accounts.all().at(kModel).byte_micros, 0);
}

// A donor's one lease ends; its account says why, and how long it was lent from the grant on.
struct End {
  const char* name;
  std::function<void(Donor&, absl::Time)> ends;
  Ending why;
  bool fenced;
};

End RevokedByTheBroker(const char* name, Ending reason) {
  const auto ends = [reason](Donor& donor, absl::Time t) {
    Lease lease = MakeLease(1);
    lease.state = State::kRevoking;
    lease.revoke_reason = reason;
    donor.OnLeaseUpdate(lease, t - kDeadline / 2);
    donor.NeedBack(1, t - kDeadline / 4);  // it comes back already
    donor.BorrowerReleased(kId, t);
  };
  return {name, ends, reason, false};
}

class AccountOfALeaseTest : public testing::TestWithParam<End> {};

INSTANTIATE_TEST_SUITE_P(AllEnds, AccountOfALeaseTest,
                         testing::Values(End{"GivenBack", [](Donor& d, absl::Time t) { d.BorrowerReleased(kId, t); },
                                             Ending::kGivenBack, false},
                                         End{"NeededAndReleased",
                                             [](Donor& d, absl::Time t) {
                                               d.NeedBack(1, t - kDeadline / 2);
                                               d.BorrowerReleased(kId, t);
                                             },
                                             Ending::kNeed, false},
                                         End{"NeededAsTheBrokerAdvised",
                                             [](Donor& d, absl::Time t) {
                                               d.TakeAdvised({kId}, t - kDeadline / 2);
                                               d.BorrowerReleased(kId, t);
                                             },
                                             Ending::kNeed, false},
                                         End{"NeededAndNotInTime",
                                             [](Donor& d, absl::Time t) {
                                               d.NeedBack(1, t - kDeadline);
                                               d.Tick(t);
                                             },
                                             Ending::kNeed, true},
                                         End{"NeededAndItsBorrowerWent",
                                             [](Donor& d, absl::Time t) {
                                               d.NeedBack(1, t - kDeadline / 2);
                                               d.BorrowerGone(kId, t);
                                             },
                                             Ending::kNeed, true},
                                         RevokedByTheBroker("AnOperatorRevokedIt", Ending::kOperator),
                                         RevokedByTheBroker("ALimitRevokedIt", Ending::kLimit),
                                         RevokedByTheBroker("FairnessRevokedIt", Ending::kFairness),
                                         RevokedByTheBroker("TheBrokerRevokedIt", Ending::kBroker),
                                         End{"Shutdown",
                                             [](Donor& d, absl::Time t) {
                                               d.RevokeAll("", t - kDeadline / 2);
                                               d.BorrowerReleased(kId, t);
                                             },
                                             Ending::kShutdown, false},
                                         End{"TheBorrowerDied", [](Donor& d, absl::Time t) { d.BorrowerGone(kId, t); },
                                             Ending::kBorrowerGone, true},
                                         End{"TheBorrowerRenewsNoMore", [](Donor& d, absl::Time t) { d.Tick(t); },
                                             Ending::kBorrowerGone, true}),
                         [](const auto& info) { return info.param.name; });

TEST_P(AccountOfALeaseTest, SaysWhyItEndedAndHowLongItWasLent) {
  Donor donor = ActiveDonor();
  const absl::Time end = kStart + kTtl;
  GetParam().ends(donor, end);
  Take(donor);
  Account expected{.leases = 1, .bytes = 0, .byte_micros = absl::int128(10 * 4096) * absl::ToInt64Microseconds(kTtl)};
  (GetParam().fenced ? expected.of(GetParam().why).fenced : expected.of(GetParam().why).released) = 1;
  EXPECT_EQ(donor.accounts().At(end + absl::Hours(1)), (std::map<std::string, Account>{{kModel, expected}}));
}

TEST(DonorAccountsTest, WhatWasNeverGrantedWasNotLent) {
  Donor donor = GrantingDonor();
  donor.Revoke(kId, "", kStart);
  donor.GrantFailed(kId, "", kStart);
  Take(donor);
  EXPECT_TRUE(donor.accounts().At(kStart + kTtl).empty());
}

TEST(DonorAccountsTest, WhatIsLentCountsUntilNow) {
  Donor donor = GrantedDonor();
  EXPECT_EQ(donor.accounts().At(kStart + absl::Seconds(2)).at(kModel).byte_seconds(), 2 * 10 * 4096);
  EXPECT_EQ(donor.accounts().At(kStart + absl::Seconds(3)).at(kModel).bytes, 10 * 4096);
  EXPECT_EQ(donor.accounts().At(kStart + absl::Seconds(3)).at(kModel).byte_seconds(), 3 * 10 * 4096);
}

}  // namespace
}  // namespace swiftcache::engine::lease
