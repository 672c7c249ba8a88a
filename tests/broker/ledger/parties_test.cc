// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/parties.h"

#include <gtest/gtest.h>

#include "tests/broker/ledger/ledger_fixture.h"

namespace swiftcache::broker::ledger {
namespace {

TEST(PartiesTest, APartyHasOneNumberUntilItsLastUseIsDropped) {
  Parties parties;
  const PartyId chat = parties.Hold(PartyOf("chat")), code = parties.Hold(PartyOf("code"));
  EXPECT_NE(chat, code);
  EXPECT_EQ(parties.Hold(PartyOf("chat")), chat);
  parties.Drop(chat);
  EXPECT_THAT(parties.OfInstance("i1"), testing::ElementsAre(chat, code));
  parties.Drop(chat);
  EXPECT_THAT(parties.OfInstance("i1"), testing::ElementsAre(code));
  parties.Drop(code);
  EXPECT_THAT(parties.OfInstance("i1"), testing::IsEmpty());
}

TEST(PartiesTest, InstancesOfOneNameAreDifferentParties) {
  Parties parties;
  EXPECT_NE(parties.Hold(PartyOf("chat", "i1")), parties.Hold(PartyOf("chat", "i2")));
}

TEST(PartiesTest, NumbersAreUsedAgainSoThatTheyStaySmall) {
  Parties parties;
  parties.Hold(PartyOf("stays"));
  for (int i = 0; i < 100; ++i) {
    const PartyId id = parties.Hold(PartyOf(absl::StrCat("passes-", i)));
    EXPECT_EQ(id, PartyId(1));
    parties.Drop(id);
  }
}

// Whoever gets the number of an engine that is gone inherits nothing of it.
TEST_F(LedgerTest, ANewEngineStartsWithNothingOfTheOneThatIsGone) {
  AddEngine(EngineOf("donor"));
  AddEngine(EngineOf("gone"));
  const Lease lease = Active("gone", 4);
  ASSERT_EQ(Request("gone", 4).leases.size(), 1u);  // an offer
  ledger_->RemoveEngine("gone", now_);
  ledger_->RemoveEngine("donor", now_);
  EXPECT_TRUE(ledger_->Snapshot().empty());
  AddEngine(EngineOf("x"));
  AddEngine(EngineOf("y"));
  EXPECT_TRUE(ledger_->LeasesOf("i1").empty());
  EXPECT_EQ(TotalBlocks(Request("x", kBlocks).leases), kBlocks) << "all of y's arena, which nobody declined";
}

// Its number is not given to another while that would inherit what it declined.
TEST_F(LedgerTest, WhatADonorDeclinedIsItsOwnAlsoAfterItIsGone) {
  AddEngine(EngineOf("chat"));
  AddEngine(EngineOf("donor"));
  const LeaseResponse offered = Request("chat", 10);
  ASSERT_EQ(Report("donor", offered.leases.at(0).id, LeaseState::kReleased), absl::OkStatus());
  ledger_->RemoveEngine("donor", now_);
  AddEngine(EngineOf("other"));
  EXPECT_EQ(TotalBlocks(Request("chat", kBlocks).leases), kBlocks);
}

}  // namespace
}  // namespace swiftcache::broker::ledger
