// SPDX-License-Identifier: Apache-2.0
#include "broker/loop/tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/broker/engines.h"

namespace swiftcache::broker::loop {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class TablesTest : public ::testing::Test {
 protected:
  static membership::EngineInfo Sharing(const std::string& name, const std::string& instance_id = "") {
    membership::EngineInfo info = EngineNamed(name, instance_id.empty() ? "i-" + name : instance_id);
    info.lease_channel = "/run/" + name;
    info.node_id = "node";
    info.page_bytes = 4096;
    return info;
  }
  static Caller CallerNamed(const std::string& name, const std::string& incarnation = "inc-1") {
    return {.name = name, .instance_id = "i-" + name, .incarnation = incarnation};
  }
  // "chat" has a lease of "code".
  ledger::LeaseId Borrow() {
    for (const char* name : {"chat", "code"}) EXPECT_TRUE(tables_.Register({Sharing(name), {}, {}}, now_).ok());
    EXPECT_TRUE(tables_.ReportWindow(CallerNamed("code"), {}, now_).ok());
    const auto answer = tables_.RequestLease(CallerNamed("chat"), {.key = "k", .want_bytes = 1}, now_);
    EXPECT_TRUE(answer.ok() && answer->leases.size() == 1) << answer.status();
    const ledger::LeaseId id = answer->leases.at(0).id;
    ledger::Lease lease = answer->leases.at(0);
    lease.state = ledger::LeaseState::kGranted;
    lease.epoch = ledger::Epoch(3);
    EXPECT_TRUE(tables_.ReportLease(CallerNamed("code"), lease, now_).ok());
    return id;
  }

  Tables tables_{{.membership = {.heartbeat_interval = absl::Seconds(1), .heartbeat_misses = 3},
                  .incarnation = "inc-1",
                  .new_capability = [] { return "capability"; }}};
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(TablesTest, NewsContinuesTheSnapshot) {
  Borrow();
  const std::vector<TableChange> all = tables_.TakeChanges();
  EXPECT_THAT(all, SizeIs(4));  // two engines, the offer, the grant
  for (const TableChange& change : all) EXPECT_EQ(change.event.incarnation, "inc-1");
  EXPECT_THAT(tables_.TakeChanges(), IsEmpty());
}

TEST_F(TablesTest, AnEnginesSnapshotIsOfItsOwnLeasesAndOfLimits) {
  const ledger::LeaseId id = Borrow();
  for (const char* name : {"chat-2", "code-2"}) {
    membership::EngineInfo info = Sharing(name);
    info.node_id = "another";
    EXPECT_TRUE(tables_.Register({info, {}, {}}, now_).ok());
  }
  ASSERT_TRUE(tables_.LimitLease("model", std::nullopt, now_).ok());
  for (const auto& [instance, leases] :
       {std::pair("i-chat", 1), std::pair("i-code", 1), std::pair("i-chat-2", 0), std::pair("nobody", 0)}) {
    const auto snapshot = std::get<WatchEvent::Snapshot>(tables_.Snapshot(instance).what);
    EXPECT_THAT(snapshot.engines, IsEmpty());
    EXPECT_THAT(snapshot.limits, SizeIs(1));
    EXPECT_THAT(snapshot.leases, SizeIs(leases)) << instance;
    if (leases > 0) {
      EXPECT_EQ(snapshot.leases[0].id, id);
    }
  }
}

// It has not heard of them: the broker lost sight of it when they were granted.
TEST_F(TablesTest, TheSnapshotOfABorrowerThatHasExpiredHasItsLeases) {
  const ledger::LeaseId id = Borrow();
  for (int beats = 0; beats < 3; ++beats) {
    now_ += absl::Seconds(1);
    ASSERT_TRUE(tables_.Heartbeat(CallerNamed("code"), {}, now_).ok());
  }
  ASSERT_EQ(tables_.engines().Find("chat"), std::nullopt);
  const auto snapshot = std::get<WatchEvent::Snapshot>(tables_.Snapshot("i-chat").what);
  ASSERT_THAT(snapshot.leases, SizeIs(1));
  EXPECT_EQ(snapshot.leases[0].id, id);
}

TEST_F(TablesTest, ALimitThatAnEngineBringsIsNews) {
  const ledger::LeaseLimit limit{"model", 7, 1000};
  ASSERT_TRUE(tables_.Register({Sharing("chat"), {}, {limit}}, now_).ok());
  const std::vector<TableChange> changes = tables_.TakeChanges();
  ASSERT_THAT(changes, SizeIs(2));
  EXPECT_EQ(std::get<ledger::LeaseLimit>(changes[1].event.what), limit);
  ASSERT_TRUE(tables_.Register({Sharing("code"), {}, {limit}}, now_).ok());
  EXPECT_THAT(tables_.TakeChanges(), SizeIs(1)) << "it is known";
}

TEST_F(TablesTest, ALimitIsNewsBeforeTheLeasesThatItEnds) {
  const ledger::LeaseId id = Borrow();
  tables_.TakeChanges();
  ASSERT_TRUE(tables_.LimitLease("model", 0, now_).ok());
  const std::vector<TableChange> set = tables_.TakeChanges();
  ASSERT_THAT(set, SizeIs(2));
  const auto limit = std::get<ledger::LeaseLimit>(set[0].event.what);
  EXPECT_EQ(limit.model_name, "model");
  EXPECT_EQ(limit.max_borrowed_bytes, 0);
  EXPECT_EQ(std::get<ledger::Lease>(set[1].event.what).id, id);
  EXPECT_THAT(std::get<WatchEvent::Snapshot>(tables_.Snapshot().what).limits, ElementsAre(limit));

  EXPECT_FALSE(tables_.LimitLease("model", -1, now_).ok());
  EXPECT_THAT(tables_.TakeChanges(), IsEmpty());
  ASSERT_TRUE(tables_.LimitLease("model", std::nullopt, now_).ok());
  EXPECT_THAT(tables_.TakeChanges(), SizeIs(1));
  const auto limits = std::get<WatchEvent::Snapshot>(tables_.Snapshot().what).limits;
  ASSERT_THAT(limits, SizeIs(1)) << "engines are to forget the old one";
  EXPECT_FALSE(limits[0].max_borrowed_bytes.has_value());
}

TEST_F(TablesTest, WhoDiesLeavesBothTables) {
  Borrow();
  now_ += absl::Seconds(2);
  ASSERT_TRUE(tables_.Heartbeat(CallerNamed("chat"), {}, now_).ok());
  now_ += absl::Seconds(1);
  EXPECT_LE(tables_.NextDeadline(), now_);
  tables_.Tick(now_);
  EXPECT_THAT(tables_.engines().Snapshot(), SizeIs(1));
  EXPECT_THAT(tables_.leases().Snapshot(), IsEmpty());
}

TEST_F(TablesTest, ANewInstanceEntersAfterTheDeathOfTheOldOneWasTold) {
  Borrow();
  tables_.TakeChanges();
  now_ += absl::Seconds(3);
  ASSERT_TRUE(tables_.Register({Sharing("code", "i2"), {}, {}}, now_).ok());
  bool ended = false;
  for (const TableChange& change : tables_.TakeChanges()) {
    if (const auto* lease = std::get_if<ledger::Lease>(&change.event.what)) {
      ended = ended || (lease->donor.instance_id == "i-code" && lease->state == ledger::LeaseState::kReleased);
    }
  }
  EXPECT_TRUE(ended);
  EXPECT_THAT(tables_.leases().Snapshot(), IsEmpty());
}

TEST_F(TablesTest, ACopyOfARegistrationChangesNothing) {
  Borrow();
  membership::EngineInfo donor = Sharing("code");
  donor.registration = 7;
  const std::vector<ledger::Lease> held = tables_.leases().Snapshot();
  ASSERT_TRUE(tables_.Register({donor, held, {}}, now_).ok());
  tables_.TakeChanges();
  donor.state = membership::EngineState::kStarting;
  for (const int64_t heard : {6, 7}) {
    donor.registration = heard;
    EXPECT_TRUE(tables_.Register({donor, {}, {}}, now_).ok());
    EXPECT_THAT(tables_.TakeChanges(), IsEmpty()) << heard;
    EXPECT_EQ(tables_.engines().Find("code")->info.state, membership::EngineState::kReady);
    EXPECT_EQ(tables_.leases().Snapshot(), held);
  }
  donor.registration = 8;
  EXPECT_TRUE(tables_.Register({donor, {}, {}}, now_).ok());
  EXPECT_THAT(tables_.leases().Snapshot(), IsEmpty()) << "its donor does not hold it";
}

TEST_F(TablesTest, AnEngineThatLeftIsNotBroughtBackByACopyOfItsRegistration) {
  Borrow();
  const std::vector<ledger::Lease> held = tables_.leases().Snapshot();
  tables_.Deregister("code", "i-code", now_);
  EXPECT_TRUE(tables_.Register({Sharing("code"), held, {}}, now_).ok());
  EXPECT_EQ(tables_.engines().Find("code"), std::nullopt);
  EXPECT_THAT(tables_.leases().Snapshot(), IsEmpty());
  EXPECT_TRUE(tables_.Register({Sharing("code", "i2"), {}, {}}, now_).ok());
  EXPECT_NE(tables_.engines().Find("code"), std::nullopt) << "the next instance of that name";
}

// It came late: the engine has given up waiting for the answer, and has taken its leave.
TEST_F(TablesTest, NorByARegistrationThatComesAfterItLeft) {
  tables_.Deregister("code", "i-code", now_);
  EXPECT_TRUE(tables_.Register({Sharing("code"), {}, {}}, now_).ok());
  EXPECT_EQ(tables_.engines().Find("code"), std::nullopt);
}

TEST_F(TablesTest, ARefusedRegistrationEntersNeitherTable) {
  membership::EngineInfo bad = Sharing("code");
  bad.kv.block_bytes = 1;
  EXPECT_EQ(tables_.Register({bad, {}, {}}, now_).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tables_.ReportWindow(CallerNamed("code"), {}, now_).code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(tables_.Register({Sharing("code"), {}, {}}, now_).ok());
  EXPECT_EQ(tables_.Register({Sharing("code", "i2"), {}, {}}, now_).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(tables_.ReportWindow(CallerNamed("code"), {}, now_).ok());
}

TEST_F(TablesTest, AnotherIncarnationIsToRegisterAgain) {
  const ledger::LeaseId id = Borrow();
  const auto kUnavailable = absl::StatusCode::kUnavailable;
  const Caller old = CallerNamed("code", "inc-0");
  EXPECT_EQ(tables_.Heartbeat(old, {}, now_).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(tables_.ReportWindow(old, {}, now_).code(), kUnavailable);
  EXPECT_EQ(tables_.RequestLease(old, {.key = "k", .want_bytes = 1}, now_).status().code(), kUnavailable);
  EXPECT_EQ(tables_.ScaleUp(old, 1, now_).status().code(), kUnavailable);
  EXPECT_EQ(tables_.ReportLease(old, {.id = id, .state = ledger::LeaseState::kFenced}, now_).code(), kUnavailable);
  EXPECT_THAT(tables_.leases().Snapshot(), SizeIs(1));
}

TEST_F(TablesTest, ABrokerThatSleptForgivesAll) {
  Borrow();
  tables_.PostponeDeadlines(absl::Hours(1));
  now_ += absl::Hours(1);
  tables_.Tick(now_);
  EXPECT_THAT(tables_.engines().Snapshot(), SizeIs(2));
  EXPECT_THAT(tables_.leases().Snapshot(), SizeIs(1));
}

}  // namespace
}  // namespace swiftcache::broker::loop
