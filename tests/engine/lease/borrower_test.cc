// SPDX-License-Identifier: Apache-2.0
#include "engine/lease/borrower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace swiftcache::engine::lease {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Time kStart = absl::FromUnixSeconds(1000);
constexpr absl::Duration kTtl = absl::Seconds(9), kDrain = absl::Milliseconds(50), kLeft = absl::Milliseconds(40);
constexpr kv::LeaseId kId(1);

Lease MakeLease(int64_t id) {
  return {.id = kv::LeaseId(id),
          .donor = "summer",
          .donor_instance = "summer-1",
          .borrower = "chat",
          .borrower_instance = "chat-1",
          .extent = {90, 10},
          .num_bytes = 40960,
          .borrower_blocks = 5,
          .epoch = kv::Epoch(7),
          .state = State::kGranted,
          .channel = "/run/summer.sock",
          .capability = "secret"};
}

struct Words {
  std::string operator()(const Borrower::Open& a) { return absl::StrCat("open ", a.lease.id.value()); }
  std::string operator()(const Borrower::Use& a) { return absl::StrCat("use ", a.lease.id.value()); }
  std::string operator()(const Borrower::SendRenewal& a) { return absl::StrCat("renew ", a.id.value()); }
  std::string operator()(const Borrower::Drain& a) { return absl::StrCat("drain ", a.id.value()); }
  std::string operator()(const Borrower::SendRelease& a) { return absl::StrCat("release ", a.id.value()); }
  std::string operator()(const Borrower::Lose& a) { return absl::StrCat("lose ", a.id.value()); }
  std::string operator()(const Borrower::Close& a) { return absl::StrCat("close ", a.id.value()); }
};

std::vector<std::string> Take(Borrower& borrower) {
  std::vector<std::string> words;
  for (const Borrower::Action& action : borrower.TakeActions()) words.push_back(std::visit(Words(), action));
  EXPECT_TRUE(borrower.CheckInvariants().ok()) << borrower.CheckInvariants();
  return words;
}

Borrower NewBorrower() {
  return Borrower({.instance_id = "chat-1", .block_bytes = 8192, .ttl = kTtl, .drain = kDrain});
}
Borrower OpeningBorrower() {
  Borrower borrower = NewBorrower();
  borrower.Granted(MakeLease(1), kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("open 1"));
  return borrower;
}
Borrower ActiveBorrower() {
  Borrower borrower = OpeningBorrower();
  borrower.Opened(kId, true, kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("use 1"));
  return borrower;
}
Borrower DrainingBorrower() {
  Borrower borrower = ActiveBorrower();
  borrower.Revoked(kId, kLeft, kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("drain 1"));
  return borrower;
}
Borrower LosingBorrower() {
  Borrower borrower = ActiveBorrower();
  borrower.DonorGone(kId, kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("lose 1"));
  return borrower;
}

TEST(BorrowerTest, AGrantWithFewerBytesThanItsBlocksTakeIsIgnored) {
  Borrower borrower = NewBorrower();
  int64_t id = 0;
  for (const auto& [num_bytes, blocks] : std::vector<std::pair<int64_t, int64_t>>{
           {40960, 6}, {40960, 0}, {40960, -1}, {0, 5}, {-40960, 5}, {40960, int64_t{1} << 62}}) {
    Lease lease = MakeLease(++id);
    lease.num_bytes = num_bytes;
    lease.borrower_blocks = blocks;
    borrower.Granted(lease, kStart);
    EXPECT_THAT(Take(borrower), IsEmpty()) << num_bytes << " for " << blocks;
    EXPECT_EQ(borrower.ignored(), id);
  }
  EXPECT_THAT(borrower.Held(), IsEmpty());
}

TEST(BorrowerTest, AGrantedLeaseIsOpenedAndUsed) {
  Borrower borrower = ActiveBorrower();
  ASSERT_THAT(borrower.Held(), SizeIs(1));
  EXPECT_EQ(borrower.Held()[0].epoch, kv::Epoch(7));
}

TEST(BorrowerTest, WhatCannotBeOpenedIsClosed) {
  Borrower borrower = OpeningBorrower();
  borrower.Opened(kId, false, kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("close 1"));
  EXPECT_THAT(borrower.Held(), IsEmpty());
}

TEST(BorrowerTest, LeasesOfAnotherInstanceAreNotOurs) {
  Borrower borrower = NewBorrower();
  Lease lease = MakeLease(1);
  lease.borrower_instance = "chat-0";
  borrower.Granted(lease, kStart);
  EXPECT_THAT(Take(borrower), IsEmpty());
  EXPECT_EQ(borrower.ignored(), 1);
}

TEST(BorrowerTest, ADonorThatDoesNotAnswerTheOpeningIsGivenUp) {
  Borrower borrower = OpeningBorrower();
  EXPECT_EQ(borrower.NextDeadline(), kStart + kTtl);
  borrower.Tick(kStart + kTtl);
  EXPECT_THAT(Take(borrower), ElementsAre("close 1"));
  borrower.Opened(kId, true, kStart + kTtl);
  EXPECT_THAT(Take(borrower), IsEmpty());
}

TEST(BorrowerTest, RenewsThreeTimesInALifetime) {
  Borrower borrower = ActiveBorrower();
  for (int i = 1; i <= 5; ++i) {
    EXPECT_EQ(borrower.NextDeadline(), kStart + kTtl / 3 * i);
    borrower.Tick(borrower.NextDeadline());
    EXPECT_THAT(Take(borrower), ElementsAre("renew 1"));
    borrower.Renewed(kId, kStart + kTtl / 3 * i);
  }
}

TEST(BorrowerTest, OfALeaseThatNobodyHasLookedAtItSaysSo) {
  Borrower borrower = ActiveBorrower();
  borrower.Tick(borrower.NextDeadline());
  const std::vector<Borrower::Action> actions = borrower.TakeActions();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<Borrower::SendRenewal>(actions[0]).heat, kUnknownHeat);
}

TEST(BorrowerTest, HowHotALeaseIsGoesWithARenewalAtOnceAndWithLaterOnes) {
  Borrower borrower = ActiveBorrower();
  const auto heat = [&] {
    const std::vector<Borrower::Action> actions = borrower.TakeActions();
    return actions.size() == 1 ? std::get<Borrower::SendRenewal>(actions[0]).heat : -1;
  };
  borrower.NoteHeat(kId, 700, kStart + kTtl / 6);
  EXPECT_EQ(heat(), 700);
  EXPECT_EQ(borrower.NextDeadline(), kStart + kTtl / 2) << "that was a renewal";
  borrower.Tick(borrower.NextDeadline());
  EXPECT_EQ(heat(), 700);
  borrower.Revoked(kId, kLeft, kStart + kTtl / 2);
  EXPECT_THAT(Take(borrower), ElementsAre("drain 1"));
  borrower.NoteHeat(kId, 800, kStart + kTtl / 2);
  EXPECT_THAT(Take(borrower), IsEmpty()) << "it goes anyway";
}

TEST(BorrowerTest, ADonorThatHasNotHeardOfALongerTtlHearsOfItsBorrowerInTime) {
  Borrower borrower = ActiveBorrower();
  borrower.SetTtl(kTtl * 10, kStart);
  for (int i = 1; i <= 5; ++i) {
    EXPECT_EQ(borrower.NextDeadline(), kStart + kTtl / 3 * i);
    borrower.Tick(borrower.NextDeadline());
    EXPECT_THAT(Take(borrower), ElementsAre("renew 1"));
    borrower.Renewed(kId, kStart + kTtl / 3 * i);
  }
  borrower.SetTtl(kTtl / 3, borrower.NextDeadline() - kTtl / 3);
  EXPECT_EQ(borrower.NextDeadline(), kStart + kTtl / 3 * 5 + kTtl / 9) << "a shorter one counts";
}

TEST(BorrowerTest, ADonorThatAnswersNoRenewalIsLeft) {
  Borrower borrower = ActiveBorrower();
  borrower.Tick(kStart + kTtl / 3);
  borrower.Tick(kStart + kTtl * 2 / 3);
  EXPECT_THAT(Take(borrower), ElementsAre("renew 1", "renew 1"));
  borrower.Tick(kStart + kTtl);
  EXPECT_THAT(Take(borrower), ElementsAre("drain 1"));
  borrower.Drained(kId, kStart + kTtl);
  EXPECT_THAT(Take(borrower), ElementsAre("release 1", "close 1"));
}

TEST(BorrowerTest, ARevokedLeaseIsReleasedOnceItIsDrained) {
  Borrower borrower = ActiveBorrower();
  borrower.Revoked(kId, kLeft, kStart);
  const auto actions = borrower.TakeActions();
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(std::get<Borrower::Drain>(actions[0]).until, kStart + kLeft);
  borrower.Drained(kId, kStart + kLeft / 2);
  EXPECT_THAT(Take(borrower), ElementsAre("release 1", "close 1"));
  EXPECT_EQ(borrower.num_leases(), 0);
}

// A donor that ends in order gives time, and takes it back where it needs the memory.
TEST(BorrowerTest, ADrainIsHastenedAndNeverSlowed) {
  Borrower borrower = DrainingBorrower();
  borrower.Revoked(kId, kLeft, kStart + kLeft / 2);
  EXPECT_THAT(Take(borrower), IsEmpty());
  borrower.Revoked(kId, kLeft / 4, kStart + kLeft / 2);
  const auto actions = borrower.TakeActions();
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(std::get<Borrower::Drain>(actions[0]).until, kStart + kLeft * 3 / 4);
  borrower.Tick(kStart + kLeft * 3 / 4);
  EXPECT_THAT(Take(borrower), ElementsAre("lose 1"));
}

TEST(BorrowerTest, WhatIsNotDrainedInTimeIsLostAndClosedWhenKvLetsGo) {
  Borrower borrower = DrainingBorrower();
  borrower.Tick(kStart + kLeft);
  EXPECT_THAT(Take(borrower), ElementsAre("lose 1"));
  EXPECT_THAT(borrower.Held(), IsEmpty());
  EXPECT_EQ(borrower.NextDeadline(), absl::InfiniteFuture());
  borrower.Dropped(kId, kStart + kTtl);
  EXPECT_THAT(Take(borrower), ElementsAre("close 1"));
}

TEST(BorrowerTest, ADrainThatCrossesTheLossClosesWithoutARelease) {
  Borrower borrower = DrainingBorrower();
  borrower.Tick(kStart + kLeft);
  borrower.TakeActions();
  borrower.Drained(kId, kStart + kLeft);
  EXPECT_THAT(Take(borrower), ElementsAre("close 1"));
  borrower.Dropped(kId, kStart + kLeft);
  EXPECT_THAT(Take(borrower), IsEmpty());
}

TEST(BorrowerTest, AForeignTimeLeftIsNotBelievedBeyondReason) {
  for (absl::Duration left : {absl::InfiniteDuration(), -absl::InfiniteDuration(), absl::Hours(1000000)}) {
    Borrower borrower = ActiveBorrower();
    borrower.Revoked(kId, left, kStart);
    EXPECT_THAT(Take(borrower), ElementsAre("drain 1"));
    EXPECT_GE(borrower.NextDeadline(), kStart);
    EXPECT_LE(borrower.NextDeadline(), kStart + kTtl);
  }
}

TEST(BorrowerTest, AChangedGenerationIsALoss) {
  for (auto make : {ActiveBorrower, DrainingBorrower}) {
    Borrower borrower = make();
    borrower.GenerationChanged(kId, kStart);
    EXPECT_THAT(Take(borrower), ElementsAre("lose 1"));
  }
}

TEST(BorrowerTest, AFailedStoreIsALossForItsOwnReason) {
  for (auto make : {ActiveBorrower, DrainingBorrower}) {
    Borrower borrower = make();
    borrower.StoreFailed(kId, "the channel closed", kStart);
    const auto actions = borrower.TakeActions();
    ASSERT_EQ(actions.size(), 1);
    EXPECT_EQ(std::get<Borrower::Lose>(actions[0]).why, "a store failed: the channel closed");
    EXPECT_EQ(std::get<Borrower::Lose>(actions[0]).id, kId);
  }
}

TEST(BorrowerTest, ADonorThatTakesNoStoresIsLeftWithAllItsLeases) {
  Borrower borrower = ActiveBorrower();
  for (const auto& [id, donor] :
       std::vector<std::pair<int64_t, std::string>>{{2, MakeLease(1).donor_instance}, {3, "x"}}) {
    Lease lease = MakeLease(id);
    lease.donor_instance = donor;
    borrower.Granted(lease, kStart);
    borrower.Opened(lease.id, true, kStart);
  }
  (void)Take(borrower);
  borrower.DonorSilent(kId, kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("drain 1", "drain 2"));
  borrower.DonorSilent(kId, kStart);
  EXPECT_THAT(Take(borrower), IsEmpty());
}

TEST(BorrowerTest, AnOpeningThatIsRevokedIsReleasedUnused) {
  Borrower borrower = OpeningBorrower();
  borrower.Revoked(kId, kLeft, kStart);
  EXPECT_THAT(Take(borrower), IsEmpty());
  borrower.Opened(kId, true, kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("release 1", "close 1"));
}

TEST(BorrowerTest, AnEngineThatEndsWaitsForAnOpeningASecond) {
  Borrower borrower = OpeningBorrower();
  borrower.GiveBackAll(kLeft, kStart);
  borrower.Tick(kStart + kOpeningPatience - absl::Nanoseconds(1));
  EXPECT_THAT(Take(borrower), IsEmpty());
  borrower.Tick(kStart + kOpeningPatience);
  EXPECT_THAT(Take(borrower), ElementsAre("close 1"));
  EXPECT_FALSE(borrower.any_held());
}

TEST(BorrowerTest, AnEngineThatEndsGivesBackWhatItHasAndWhatIsOnItsWay) {
  Borrower borrower = ActiveBorrower();
  borrower.Granted(MakeLease(2), kStart);
  (void)Take(borrower);
  borrower.GiveBackAll(kLeft, kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("drain 1"));
  borrower.Granted(MakeLease(3), kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("open 3"));
  EXPECT_TRUE(borrower.any_held());
  borrower.Opened(kv::LeaseId(3), true, kStart);
  borrower.Opened(kv::LeaseId(2), true, kStart);
  borrower.Drained(kId, kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("release 3", "close 3", "release 2", "close 2", "release 1", "close 1"));
  EXPECT_FALSE(borrower.any_held());
}

TEST(BorrowerTest, WhatItNeedsNoMoreIsDrainedAndReleased) {
  Borrower borrower = ActiveBorrower();
  borrower.GiveBack(kId, kLeft, kStart);
  borrower.Drained(kId, kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("drain 1", "release 1", "close 1"));
}

TEST(BorrowerTest, ALateGrantDoesNotBringALeaseBack) {
  Borrower borrower = LosingBorrower();
  borrower.Granted(MakeLease(1), kStart);
  borrower.Dropped(kId, kStart);
  EXPECT_THAT(Take(borrower), ElementsAre("close 1"));
  borrower.Granted(MakeLease(1), kStart);
  EXPECT_THAT(Take(borrower), IsEmpty());
}

// Whatever the broker believes: a lease ends by its channel.
TEST(BorrowerTest, WatchOpensWhatIsGrantedAndEndsNothing) {
  Borrower borrower = NewBorrower();
  Lease lease = MakeLease(1);
  for (State state : {State::kOffered, State::kGranted}) {
    lease.state = state;
    borrower.OnLeaseUpdate(lease, kStart);
  }
  EXPECT_THAT(Take(borrower), ElementsAre("open 1"));
  for (auto make : {OpeningBorrower, ActiveBorrower, DrainingBorrower}) {
    Borrower holding = make();
    for (State state : {State::kRevoking, State::kReleased, State::kFenced}) {
      lease.state = state;
      holding.OnLeaseUpdate(lease, kStart);
    }
    EXPECT_THAT(Take(holding), IsEmpty());
    EXPECT_THAT(holding.Held(), SizeIs(1));
  }
}

/// What the actions for one lease must be: a grammar that holds whatever comes in.
class Monitor {
 public:
  /// `freed`: kv has said that it uses the region no more.
  void See(const std::vector<std::string>& words, bool freed) {
    for (const std::string& word : words) See(word, freed);
  }
  std::string trace() const { return absl::StrJoin(seen_, ", "); }

 private:
  int64_t Count(absl::string_view verb) const {
    auto it = count_.find(std::string(verb));
    return it == count_.end() ? 0 : it->second;
  }
  void See(const std::string& word, bool freed) {
    const std::string verb = word.substr(0, word.find(' '));
    seen_.push_back(word);
    EXPECT_EQ(Count("close"), 0) << "closed before " << verb;
    if (verb != "open") {
      EXPECT_EQ(Count("open"), 1);
    }
    if (verb == "renew") {
      EXPECT_EQ(Count("use") - Count("drain") - Count("lose"), 1);
    }
    if (verb == "drain" || verb == "lose") {
      EXPECT_EQ(Count("use") - Count("lose"), 1);
    }
    if (verb == "release") {
      EXPECT_TRUE(Count("use") == 0 || (freed && Count("drain") > 0 && Count("lose") == 0));
    }
    if (verb == "close" && Count("use") == 1) {
      EXPECT_TRUE(freed && Count("drain") + Count("lose") > 0);
    }
    ++count_[verb];
    if (verb != "renew" && verb != "drain") {
      EXPECT_EQ(Count(verb), 1) << verb << " twice";
    }
  }
  std::map<std::string, int64_t> count_;
  std::vector<std::string> seen_;
};

struct Input {
  std::string name;
  std::function<void(Borrower&, absl::Time)> apply;
};

const std::vector<Input>& Inputs() {
  static const auto& inputs = *new std::vector<Input>{
      {"Granted", [](Borrower& b, absl::Time t) { b.Granted(MakeLease(1), t); }},
      {"Opened", [](Borrower& b, absl::Time t) { b.Opened(kId, true, t); }},
      {"NotOpened", [](Borrower& b, absl::Time t) { b.Opened(kId, false, t); }},
      {"Renewed", [](Borrower& b, absl::Time t) { b.Renewed(kId, t); }},
      {"Revoked", [](Borrower& b, absl::Time t) { b.Revoked(kId, kLeft, t); }},
      {"Drained", [](Borrower& b, absl::Time t) { b.Drained(kId, t); }},
      {"Dropped", [](Borrower& b, absl::Time t) { b.Dropped(kId, t); }},
      {"DonorGone", [](Borrower& b, absl::Time t) { b.DonorGone(kId, t); }},
      {"GenerationChanged", [](Borrower& b, absl::Time t) { b.GenerationChanged(kId, t); }},
      {"DonorSilent", [](Borrower& b, absl::Time t) { b.DonorSilent(kId, t); }},
      {"GiveBack", [](Borrower& b, absl::Time t) { b.GiveBack(kId, kLeft, t); }},
      {"GiveBackAll", [](Borrower& b, absl::Time t) { b.GiveBackAll(kLeft, t); }},
      {"Tick", [](Borrower& b, absl::Time t) { b.Tick(t); }},
      {"LaterTick", [](Borrower& b, absl::Time t) { b.Tick(t + kTtl / 3); }},
      {"LateTick", [](Borrower& b, absl::Time t) { b.Tick(t + kTtl); }},
  };
  return inputs;
}

/// Tries every continuation of `length` inputs, each a copy of a message that may be new, repeated or long overdue.
void TryAll(const Borrower& borrower, const Monitor& monitor, const std::string& path, int length) {
  if (length == 0 || ::testing::Test::HasFailure()) return;
  for (const Input& input : Inputs()) {
    Borrower next = borrower;
    Monitor seen = monitor;
    input.apply(next, kStart + absl::Milliseconds(1));
    const int64_t ignored = next.ignored() - borrower.ignored();
    const auto words = Take(next);
    seen.See(words, input.name == "Drained" || input.name == "Dropped");
    if (ignored > 0) {
      EXPECT_THAT(words, IsEmpty());
    }
    if (next.num_leases() < borrower.num_leases()) {
      EXPECT_EQ(words.back(), "close 1");
    }
    ASSERT_FALSE(::testing::Test::HasFailure()) << path << " " << input.name << ": " << seen.trace();
    TryAll(next, seen, absl::StrCat(path, " ", input.name), length - 1);
  }
}

TEST(BorrowerTest, EveryOrderOfMessagesKeepsTheGrammar) { TryAll(NewBorrower(), Monitor(), "", 5); }

TEST(BorrowerTest, EveryMessageTwiceInEveryStateKeepsTheGrammar) {
  for (const std::vector<std::string>& life :
       {std::vector<std::string>{"Granted", "Opened", "Renewed", "Revoked", "Drained"},
        std::vector<std::string>{"Granted", "Opened", "DonorGone", "Dropped"}}) {
    Borrower borrower = NewBorrower();
    Monitor monitor;
    for (const std::string& step : life) {
      TryAll(borrower, monitor, absl::StrCat("before ", step, ":"), 3);
      for (const Input& input : Inputs()) {
        if (input.name == step) input.apply(borrower, kStart);
      }
      monitor.See(Take(borrower), step == "Drained" || step == "Dropped");
    }
    TryAll(borrower, monitor, "after the end:", 3);
    EXPECT_EQ(borrower.num_leases(), 0);
  }
}

TEST(BorrowerTest, WhateverHappenedTheEndComesByItself) {
  // From every state that four inputs reach, time and kv alone bring every lease to its end.
  std::function<void(const Borrower&, int)> walk = [&](const Borrower& borrower, int length) {
    Borrower end = borrower;
    for (int i = 0; i < 10 && end.NextDeadline() < absl::InfiniteFuture(); ++i) end.Tick(end.NextDeadline());
    end.Dropped(kId, kStart + kTtl);
    ASSERT_EQ(end.num_leases(), 0);
    if (length == 0) return;
    for (const Input& input : Inputs()) {
      Borrower next = borrower;
      input.apply(next, kStart);
      walk(next, length - 1);
    }
  };
  walk(NewBorrower(), 4);
}

}  // namespace
}  // namespace swiftcache::engine::lease
