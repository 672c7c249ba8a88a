// SPDX-License-Identifier: Apache-2.0
#include "engine/lease/donor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace swiftcache::engine::lease {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Time kStart = absl::FromUnixSeconds(1000);
constexpr absl::Duration kDeadline = absl::Milliseconds(50), kTtl = absl::Seconds(10);

Lease MakeLease(int64_t id, int64_t first_block = 90, int64_t num_blocks = 10) {
  return {.id = kv::LeaseId(id),
          .donor = "summer",
          .donor_instance = "summer-1",
          .borrower = "chat",
          .borrower_instance = "chat-1",
          .extent = {first_block, num_blocks},
          .num_bytes = num_blocks * 4096,
          .borrower_blocks = num_blocks / 2,
          .channel = "/run/summer.sock",
          .capability = "secret"};
}

struct Words {
  std::string operator()(const Donor::ClearExtent& a) { return absl::StrCat("clear ", a.lease.id.value()); }
  std::string operator()(const Donor::StopClearing& a) { return absl::StrCat("stop clearing ", a.id.value()); }
  std::string operator()(const Donor::Grant& a) { return absl::StrCat("grant ", a.lease.id.value()); }
  std::string operator()(const Donor::SendRenewed& a) { return absl::StrCat("renewed ", a.id.value()); }
  std::string operator()(const Donor::SendRevoke& a) {
    return absl::StrCat("revoke ", a.id.value(), " in ", absl::FormatDuration(a.time_left));
  }
  std::string operator()(const Donor::Fence& a) { return absl::StrCat("fence ", a.id.value()); }
  std::string operator()(const Donor::TakeBack& a) {
    return absl::StrCat("take ", a.id.value(), a.fenced ? " fenced" : "");
  }
  std::string operator()(const Donor::ReportAccepted& a) {
    return absl::StrCat("ACCEPTED ", a.id.value(), " epoch ", a.epoch.value());
  }
  std::string operator()(const Donor::ReportDeclined& a) { return absl::StrCat("DECLINED ", a.id.value()); }
  std::string operator()(const Donor::ReportRevoking& a) { return absl::StrCat("REVOKING ", a.id.value()); }
  std::string operator()(const Donor::ReportReleased& a) { return absl::StrCat("RELEASED ", a.id.value()); }
  std::string operator()(const Donor::ReportFenced& a) { return absl::StrCat("FENCED ", a.id.value()); }
};

std::vector<std::string> Take(Donor& donor) {
  std::vector<std::string> words;
  for (const Donor::Action& action : donor.TakeActions()) words.push_back(std::visit(Words(), action));
  EXPECT_TRUE(donor.CheckInvariants().ok()) << donor.CheckInvariants();
  return words;
}

constexpr kv::LeaseId kId(1);

constexpr int64_t kArenaBlocks = 100;
Donor NewDonor() {
  return Donor({.instance_id = "summer-1",
                .num_blocks = kArenaBlocks,
                .block_bytes = 4096,
                .revoke_deadline = kDeadline,
                .ttl = kTtl});
}
Donor ClearingDonor() {
  Donor donor = NewDonor();
  donor.Offered(MakeLease(1), kStart);
  EXPECT_THAT(Take(donor), ElementsAre("clear 1"));
  return donor;
}
Donor GrantingDonor() {
  Donor donor = ClearingDonor();
  donor.Cleared(kId, true, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("grant 1"));
  return donor;
}
Donor GrantedDonor() {
  Donor donor = GrantingDonor();
  donor.Granted(kId, kv::Epoch(7), kStart);
  EXPECT_THAT(Take(donor), ElementsAre("ACCEPTED 1 epoch 7"));
  return donor;
}
Donor ActiveDonor() {
  Donor donor = GrantedDonor();
  donor.BorrowerOpened(kId, kStart);
  EXPECT_THAT(Take(donor), IsEmpty());
  return donor;
}
Donor RevokingDonor() {
  Donor donor = ActiveDonor();
  donor.Revoke(kId, "own need", kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms", "REVOKING 1"));
  return donor;
}

/// Offers, grants and opens one lease more.
void Lend(Donor& donor, const Lease& lease) {
  donor.Offered(lease, kStart);
  donor.Cleared(lease.id, true, kStart);
  donor.Granted(lease.id, kv::Epoch(7), kStart);
  donor.BorrowerOpened(lease.id, kStart);
  donor.TakeActions();
}

TEST(DonorTest, ALeaseIsClearedGrantedAndAcceptedBeforeItIsUsed) {
  Donor donor = ActiveDonor();
  ASSERT_THAT(donor.Held(), SizeIs(1));
  EXPECT_EQ(donor.Held()[0].state, State::kActive);
  EXPECT_EQ(donor.Held()[0].epoch, kv::Epoch(7));
  EXPECT_EQ(donor.Held()[0].capability, "secret");
  EXPECT_EQ(donor.blocks_on_loan(), 10);
}

TEST(DonorTest, WhatKvCannotClearIsDeclined) {
  Donor donor = ClearingDonor();
  donor.Cleared(kId, false, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("DECLINED 1"));
  EXPECT_THAT(donor.Held(), IsEmpty());
}

TEST(DonorTest, WhatTheTransportCannotGrantGoesBackToKv) {
  Donor donor = GrantingDonor();
  donor.GrantFailed(kId, "no generation word left", kStart);
  EXPECT_THAT(Take(donor), ElementsAre("take 1", "DECLINED 1"));
}

TEST(DonorTest, OffersToAnotherInstanceAreNotOurs) {
  Donor donor = NewDonor();
  Lease lease = MakeLease(1);
  lease.donor_instance = "summer-0";
  donor.Offered(lease, kStart);
  EXPECT_THAT(Take(donor), IsEmpty());
  EXPECT_EQ(donor.ignored(), 1);
}

TEST(DonorTest, AnExtentIsNotLentTwice) {
  Donor donor = ActiveDonor();
  donor.Offered(MakeLease(2, 85, 6), kStart);
  auto actions = donor.TakeActions();
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_THAT(std::get<Donor::ReportDeclined>(actions[0]).why, HasSubstr("lease 1"));
  donor.Offered(MakeLease(3, 80, 10), kStart);  // adjacent
  EXPECT_THAT(Take(donor), ElementsAre("clear 3"));
}

TEST(DonorTest, ExtentsThatAreNotItsOwnAreDeclined) {
  Donor donor = NewDonor();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  int64_t id = 0;
  for (Extent extent :
       {Extent{-1, 5}, Extent{0, 0}, Extent{0, -5}, Extent{kMax, 1}, Extent{5, kMax}, Extent{kMax, kMax},
        Extent{kArenaBlocks, 1}, Extent{0, kArenaBlocks + 1}, Extent{(int64_t{1} << 32) + 5, 5}}) {
    Lease lease = MakeLease(++id);
    lease.extent = extent;
    donor.Offered(lease, kStart);
    EXPECT_THAT(Take(donor), ElementsAre(absl::StrCat("DECLINED ", id)));
  }
}

// The transport would grant them: to the borrower, and over what was never cleared.
TEST(DonorTest, AnOfferOfMoreOrFewerBytesThanItsBlocksHaveIsDeclined) {
  Donor donor = NewDonor();
  int64_t id = 0;
  for (int64_t num_bytes : {0, -4096, 9 * 4096, 11 * 4096, 10 * 4096 + 1}) {
    Lease lease = MakeLease(++id);
    lease.num_bytes = num_bytes;
    donor.Offered(lease, kStart);
    EXPECT_THAT(Take(donor), ElementsAre(absl::StrCat("DECLINED ", id))) << num_bytes;
  }
}

TEST(DonorTest, ARenewalIsAnsweredAndPutsTheEndOff) {
  Donor donor = ActiveDonor();
  donor.Renewal(kId, kStart + kTtl / 2);
  EXPECT_THAT(Take(donor), ElementsAre("renewed 1"));
  donor.Tick(kStart + kTtl);
  EXPECT_THAT(Take(donor), IsEmpty());
  EXPECT_EQ(donor.NextDeadline(), kStart + kTtl * 3 / 2);
  donor.Tick(donor.NextDeadline());
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1 fenced", "FENCED 1"));
}

TEST(DonorTest, ALeaseThatIsNeverOpenedIsFencedAfterItsTtl) {
  Donor donor = GrantedDonor();
  EXPECT_EQ(donor.NextDeadline(), kStart + kTtl);
  donor.Tick(kStart + kTtl);
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1 fenced", "FENCED 1"));
  EXPECT_EQ(donor.NextDeadline(), absl::InfiniteFuture());
}

TEST(DonorTest, TheBorrowerGivesBackWithinTheDeadline) {
  Donor donor = RevokingDonor();
  donor.BorrowerReleased(kId, kStart + absl::Milliseconds(3));
  const auto actions = donor.TakeActions();
  ASSERT_THAT(actions, SizeIs(3));
  EXPECT_EQ(std::get<Donor::Fence>(actions[0]).id, kId);
  EXPECT_EQ(std::get<Donor::TakeBack>(actions[1]).after_revoke, absl::Milliseconds(3));
  EXPECT_EQ(std::get<Donor::TakeBack>(actions[1]).extent, (Extent{90, 10}));
  EXPECT_EQ(std::get<Donor::ReportReleased>(actions[2]).id, kId);
}

TEST(DonorTest, AtTheDeadlineTheDonorFencesAlone) {
  Donor donor = RevokingDonor();
  EXPECT_EQ(donor.NextDeadline(), kStart + kDeadline);
  donor.Tick(kStart + kDeadline - absl::Nanoseconds(1));
  EXPECT_THAT(Take(donor), IsEmpty());
  donor.Tick(kStart + kDeadline);
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1 fenced", "FENCED 1"));
}

TEST(DonorTest, ARenewalDoesNotPutARevocationOff) {
  Donor donor = RevokingDonor();
  donor.Renewal(kId, kStart + kDeadline / 2);
  EXPECT_THAT(Take(donor), IsEmpty());
  EXPECT_EQ(donor.NextDeadline(), kStart + kDeadline);
}

TEST(DonorTest, ASecondRevocationDoesNotPutTheFirstOff) {
  Donor donor = RevokingDonor();
  donor.Revoke(kId, "operator", kStart + kDeadline / 2);
  EXPECT_THAT(Take(donor), IsEmpty());
  EXPECT_EQ(donor.NextDeadline(), kStart + kDeadline);
}

TEST(DonorTest, ABorrowerThatIsGoneIsFencedAtOnce) {
  for (auto make : {GrantedDonor, ActiveDonor, RevokingDonor}) {
    Donor donor = make();
    donor.BorrowerGone(kId, kStart);
    EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1 fenced", "FENCED 1"));
  }
}

TEST(DonorTest, ALeaseThatNobodyReadsYetIsTakenBackAtOnce) {
  Donor donor = GrantedDonor();
  donor.Revoke(kId, "own need", kStart);
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1 fenced", "FENCED 1"));
}

TEST(DonorTest, WhatIsWantedBackWhileItIsClearedIsNotGranted) {
  Donor donor = ClearingDonor();
  donor.Revoke(kId, "own need", kStart);
  EXPECT_THAT(Take(donor), ElementsAre("stop clearing 1"));
  donor.Cleared(kId, true, kStart);  // it was too late for that
  EXPECT_THAT(Take(donor), ElementsAre("take 1", "DECLINED 1"));
}

TEST(DonorTest, WhatIsWantedBackWhileItIsGrantedIsFencedBeforeAnybodyHearsOfIt) {
  Donor donor = GrantingDonor();
  donor.Revoke(kId, "own need", kStart);
  donor.Granted(kId, kv::Epoch(7), kStart);
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1", "DECLINED 1"));
}

TEST(DonorTest, NeedTakesTheInnermostLeasesFirst) {
  Donor donor = NewDonor();
  Lend(donor, MakeLease(1, 90));
  Lend(donor, MakeLease(2, 70));
  Lend(donor, MakeLease(3, 80));
  donor.NeedBack(11, kStart);
  EXPECT_EQ(donor.blocks_coming_back(), 20);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 2 in 50ms", "REVOKING 2", "revoke 3 in 50ms", "REVOKING 3"));
}

TEST(DonorTest, ThereIsAChoiceWhereSeveralBorrowersHoldMoreThanIsNeeded) {
  Donor donor = NewDonor();
  EXPECT_FALSE(donor.HasChoice(1));
  Lend(donor, MakeLease(1, 90));
  Lend(donor, MakeLease(2, 80));
  EXPECT_FALSE(donor.HasChoice(1)) << "they are of one borrower";
  Lease other = MakeLease(3, 70);
  other.borrower_instance = "another";
  Lend(donor, other);
  EXPECT_TRUE(donor.HasChoice(1));
  EXPECT_TRUE(donor.HasChoice(29));
  EXPECT_FALSE(donor.HasChoice(30)) << "all of it is needed";
  donor.Revoke(kv::LeaseId(3), "own need", kStart);
  EXPECT_FALSE(donor.HasChoice(11)) << "what is not on its way back is of one borrower";
}

TEST(DonorTest, WhatIsNotClearedYetBringsNothingBack) {
  Donor donor = NewDonor();
  Lend(donor, MakeLease(1, 90));
  donor.Offered(MakeLease(2, 70), kStart);
  donor.TakeActions();
  EXPECT_EQ(donor.blocks_on_loan(), 10);
  donor.NeedBack(10, kStart);
  EXPECT_EQ(donor.blocks_coming_back(), 10);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms", "REVOKING 1"));
}

TEST(DonorTest, WhatIsOnItsWayBackCountsForTheNeed) {
  Donor donor = NewDonor();
  Lend(donor, MakeLease(1, 90));
  Lend(donor, MakeLease(2, 70));
  donor.NeedBack(10, kStart);
  EXPECT_EQ(donor.blocks_coming_back(), 10);
  donor.TakeActions();
  donor.NeedBack(10, kStart);
  EXPECT_EQ(donor.blocks_coming_back(), 10);
  EXPECT_THAT(Take(donor), IsEmpty());
  donor.NeedBack(100, kStart);
  EXPECT_EQ(donor.blocks_coming_back(), 20);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms", "REVOKING 1"));
}

TEST(DonorTest, ADrainingDonorWantsEverythingBackAndLendsNoMore) {
  Donor donor = NewDonor();
  Lend(donor, MakeLease(1, 90));
  donor.Offered(MakeLease(2, 70), kStart);
  donor.TakeActions();
  donor.RevokeAll("drain", kStart);
  donor.Cleared(kv::LeaseId(2), true, kStart);
  donor.Offered(MakeLease(3, 50), kStart);
  EXPECT_THAT(Take(donor),
              ElementsAre("revoke 1 in 50ms", "REVOKING 1", "stop clearing 2", "take 2", "DECLINED 2", "DECLINED 3"));
}

// Found by tests/sim: the broker called the donor dead and ended its leases, the donor heard of that, registered with
// what it still held, and never reported its end: the broker kept the lease for ever.
TEST(DonorTest, TheEndOfALeaseThatTheBrokerForgotIsReportedToo) {
  Donor donor = ActiveDonor();
  donor.BrokerForgot(kId, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms", "REVOKING 1"));
  EXPECT_THAT(donor.Held(), SizeIs(1));
  donor.BorrowerReleased(kId, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("fence 1", "take 1", "RELEASED 1"));

  Donor granting = GrantingDonor();
  granting.BrokerForgot(kId, kStart);
  granting.Granted(kId, kv::Epoch(7), kStart);
  EXPECT_THAT(Take(granting), ElementsAre("fence 1", "take 1", "DECLINED 1"));
}

// Found by tests/sim: a late copy of another Register came between, so that the broker ended the lease before the donor
// watched it again.
TEST(DonorTest, WhatASnapshotDoesNotNameIsForgotten) {
  Donor donor = ActiveDonor();
  donor.ToldAll(donor.Held(), kStart);
  EXPECT_THAT(Take(donor), IsEmpty());
  donor.ToldAll({}, kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms", "REVOKING 1"));
}

TEST(DonorTest, ALateOfferDoesNotBringALeaseBack) {
  Donor donor = ActiveDonor();
  donor.BorrowerReleased(kId, kStart);
  donor.TakeActions();
  donor.Offered(MakeLease(1), kStart);
  EXPECT_THAT(Take(donor), IsEmpty());
}

Lease ToldAs(State state) {
  Lease lease = MakeLease(1);
  lease.state = state;
  return lease;
}

TEST(DonorTest, WatchLeadsThroughTheLifeOfALease) {
  Donor donor = NewDonor();
  donor.Told(ToldAs(State::kOffered), kStart);
  EXPECT_THAT(Take(donor), ElementsAre("clear 1"));
  donor = ActiveDonor();
  donor.Told(ToldAs(State::kGranted), kStart);
  donor.Told(ToldAs(State::kActive), kStart);
  EXPECT_THAT(Take(donor), IsEmpty());
  donor.Told(ToldAs(State::kRevoking), kStart);
  EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms", "REVOKING 1"));
}

TEST(DonorTest, ALeaseThatTheBrokerEndedIsRevoked) {
  for (State state : {State::kReleased, State::kFenced}) {
    Donor donor = ActiveDonor();
    donor.Told(ToldAs(state), kStart);
    EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms", "REVOKING 1"));
  }
}

TEST(DonorTest, ALeaseThatOnlyTheBrokerBelievesInIsReportedReleased) {
  for (State state : {State::kGranted, State::kActive, State::kRevoking}) {
    Donor donor = NewDonor();
    donor.Told(ToldAs(state), kStart);
    EXPECT_THAT(Take(donor), ElementsAre("RELEASED 1"));
  }
}

TEST(DonorTest, LeasesOfOthersInWatchAreNotOurs) {
  Donor donor = NewDonor();
  Lease lease = ToldAs(State::kRevoking);
  lease.donor_instance = "summer-0";
  donor.Told(lease, kStart);
  EXPECT_THAT(Take(donor), IsEmpty());
}

/// What the actions for one lease must be: a grammar that holds whatever comes in.
class Monitor {
 public:
  void See(const std::vector<std::string>& words) {
    for (const std::string& word : words) See(word);
  }
  std::string trace() const { return absl::StrJoin(seen_, ", "); }

 private:
  int64_t Count(absl::string_view verb) const {
    auto it = count_.find(std::string(verb));
    return it == count_.end() ? 0 : it->second;
  }
  void See(const std::string& word) {
    const std::string verb = word.substr(0, word.find(' '));
    seen_.push_back(word);
    if (verb == "grant") {
      EXPECT_EQ(Count("clear"), 1);
    }
    if (verb == "ACCEPTED") {
      EXPECT_EQ(Count("grant") - Count("fence"), 1);
    }
    if (verb == "revoke") {
      EXPECT_EQ(Count("ACCEPTED") - Count("fence"), 1);
    }
    if (verb == "renewed") {
      EXPECT_EQ(Count("fence") + Count("revoke"), 0);
    }
    if (verb == "fence") {
      EXPECT_EQ(Count("grant"), 1);
    }
    if (verb == "take") {
      EXPECT_EQ(Count("clear"), 1);
    }
    if (verb == "take" && Count("ACCEPTED") == 1) {
      EXPECT_EQ(Count("fence"), 1);
    }
    if (verb == "RELEASED" || verb == "FENCED") {
      EXPECT_EQ(Count("ACCEPTED") + Count("take"), 2);
    }
    if (verb != "renewed") {
      EXPECT_EQ(++count_[verb], 1) << verb << " twice";
    }
    EXPECT_LE(Count("RELEASED") + Count("FENCED") + Count("DECLINED"), 1);
  }
  std::map<std::string, int64_t> count_;
  std::vector<std::string> seen_;
};

struct Input {
  const char* name;
  std::function<void(Donor&, absl::Time)> apply;
};

const std::vector<Input>& Inputs() {
  static const auto& inputs = *new std::vector<Input>{
      {"Offered", [](Donor& d, absl::Time t) { d.Offered(MakeLease(1), t); }},
      {"Cleared", [](Donor& d, absl::Time t) { d.Cleared(kId, true, t); }},
      {"NotCleared", [](Donor& d, absl::Time t) { d.Cleared(kId, false, t); }},
      {"Granted", [](Donor& d, absl::Time t) { d.Granted(kId, kv::Epoch(7), t); }},
      {"GrantFailed", [](Donor& d, absl::Time t) { d.GrantFailed(kId, "no room", t); }},
      {"Opened", [](Donor& d, absl::Time t) { d.BorrowerOpened(kId, t); }},
      {"Renewal", [](Donor& d, absl::Time t) { d.Renewal(kId, t); }},
      {"Released", [](Donor& d, absl::Time t) { d.BorrowerReleased(kId, t); }},
      {"Gone", [](Donor& d, absl::Time t) { d.BorrowerGone(kId, t); }},
      {"Revoke", [](Donor& d, absl::Time t) { d.Revoke(kId, "operator", t); }},
      {"NeedBack", [](Donor& d, absl::Time t) { d.NeedBack(1, t); }},
      {"BrokerForgot", [](Donor& d, absl::Time t) { d.BrokerForgot(kId, t); }},
      {"Tick", [](Donor& d, absl::Time t) { d.Tick(t); }},
      {"LateTick", [](Donor& d, absl::Time t) { d.Tick(t + kTtl); }},
      {"RevokeAll", [](Donor& d, absl::Time t) { d.RevokeAll("drain", t); }},
  };
  return inputs;
}

/// Tries every continuation of `length` inputs, each a copy of a message that may be new, repeated or long overdue.
void TryAll(const Donor& donor, const Monitor& monitor, const std::string& path, int length) {
  if (length == 0 || ::testing::Test::HasFailure()) return;
  for (const Input& input : Inputs()) {
    Donor next = donor;
    Monitor seen = monitor;
    input.apply(next, kStart + absl::Milliseconds(1));
    const bool held_before = !donor.Held().empty();
    const int64_t ignored = next.ignored() - donor.ignored();
    const auto words = Take(next);
    seen.See(words);
    if (ignored > 0) {
      EXPECT_THAT(words, IsEmpty());
    }
    if (held_before && next.Held().empty()) {
      EXPECT_FALSE(words.empty()) << "ended without a word";
    }
    ASSERT_FALSE(::testing::Test::HasFailure()) << path << " " << input.name << ": " << seen.trace();
    TryAll(next, seen, absl::StrCat(path, " ", input.name), length - 1);
  }
}

TEST(DonorTest, EveryOrderOfMessagesKeepsTheGrammar) { TryAll(NewDonor(), Monitor(), "", 5); }

TEST(DonorTest, EveryMessageTwiceInEveryStateKeepsTheGrammar) {
  const std::vector<const char*> life = {"Offered", "Cleared", "Granted", "Opened", "Renewal", "Revoke", "Released"};
  Donor donor = NewDonor();
  Monitor monitor;
  for (const char* step : life) {
    TryAll(donor, monitor, absl::StrCat("before ", step, ":"), 3);
    for (const Input& input : Inputs()) {
      if (std::string(input.name) == step) input.apply(donor, kStart);
    }
    monitor.See(Take(donor));
  }
  TryAll(donor, monitor, "after the end:", 3);
  EXPECT_THAT(donor.Held(), IsEmpty());
}

TEST(DonorTest, WhateverHappenedTheEndComesByItself) {
  // From every state that three inputs reach, kv, transport and time alone bring every lease to its end.
  std::function<void(const Donor&, int)> walk = [&](const Donor& donor, int length) {
    Donor end = donor;
    end.Cleared(kId, true, kStart + kTtl);
    end.Granted(kId, kv::Epoch(7), kStart + kTtl);
    if (end.NextDeadline() < absl::InfiniteFuture()) end.Tick(end.NextDeadline());
    ASSERT_THAT(end.Held(), IsEmpty());
    if (length == 0) return;
    for (const Input& input : Inputs()) {
      Donor next = donor;
      input.apply(next, kStart);
      walk(next, length - 1);
    }
  };
  walk(NewDonor(), 2);
  walk(ActiveDonor(), 3);
}

}  // namespace
}  // namespace swiftcache::engine::lease
