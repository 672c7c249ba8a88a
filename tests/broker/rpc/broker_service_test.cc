// SPDX-License-Identifier: Apache-2.0
#include "broker/rpc/broker_service.h"

#include "absl/strings/str_cat.h"
#include "common/base/name.h"
#include "common/rpc/watch_snapshot.h"
#include "tests/broker/rpc/door_fixture.h"
#include "tests/fakes/log_lines.h"
#include "tests/fakes/raw_rpc_client.h"

namespace swiftcache::broker::rpc {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(BrokerDoorTest, RegisterTellsIncarnationAndHeartbeatInterval) {
  ASSERT_TRUE(Register(EngineNamed("a")).ok());
  EXPECT_EQ(registered_.incarnation(), "inc-1");
  EXPECT_EQ(registered_.heartbeat_interval().seconds(), 0);
  EXPECT_EQ(registered_.heartbeat_interval().nanos(), 750'000'000);
  EXPECT_TRUE(Heartbeat("a", 1).ok());
  EXPECT_EQ(Heartbeat("b", 1).code(), absl::StatusCode::kNotFound);
}

TEST_F(BrokerDoorTest, EveryMethodRefusesARequestOfTooManyFields) {
  const auto* file = v1::RegisterRequest::descriptor()->file();
  fakes::ExpectEveryMethodRefusesTooManyFields(server_->address(), *file->FindServiceByName("BrokerService"));
}

TEST_F(BrokerDoorTest, ATakenNameComesWithRetryInfo) {
  ASSERT_TRUE(Register(EngineNamed("a")).ok());
  const absl::Status status = Register(EngineNamed("a"), "t2");
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(RetryDelayOf(status).has_value());
  EXPECT_GT(*RetryDelayOf(status), absl::Seconds(60));
  EXPECT_LE(*RetryDelayOf(status), absl::Seconds(75));
}

TEST_F(BrokerDoorTest, BadGeometryIsInvalidArgument) {
  membership::EngineInfo info = EngineNamed("a");
  info.kv.block_bytes = 7;
  const absl::Status status = Register(info);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("kv.block_bytes is 7"));
}

TEST_F(BrokerDoorTest, EveryFieldOfAnEngineSurvivesTheWay) {
  membership::EngineInfo info = EngineNamed("a", InstanceIdOf("t1"));
  info.lease_channel = "/run/a";
  info.node_id = "node";
  info.page_bytes = 4096;
  info.never_lent_blocks = 3;
  info.borrows = true;
  ASSERT_TRUE(Register(info).ok());
  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, v1::WatchRequest());
  v1::WatchResponse response;
  ASSERT_TRUE(reader->Read(&response));
  ASSERT_EQ(response.snapshot().engines_size(), 1);
  EXPECT_EQ(FromProto(response.snapshot().engines(0).info()), info);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(BrokerDoorTest, WatchSendsASnapshotThenEveryChangeWithoutAGap) {
  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, v1::WatchRequest());
  v1::WatchResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_TRUE(response.has_snapshot());
  EXPECT_EQ(response.snapshot().engines_size(), 0);
  int64_t version = response.version();

  ASSERT_TRUE(Register(EngineNamed("a")).ok());
  for (int i = 1; i <= 50; ++i) ASSERT_TRUE(Heartbeat("a", i).ok());
  grpc::ClientContext deregister_context;
  v1::DeregisterRequest request;
  request.set_name("a");
  request.set_instance_id(InstanceIdOf("t1"));
  request.set_token("t1");
  v1::DeregisterResponse gone;
  ASSERT_TRUE(stub_->Deregister(&deregister_context, request, &gone).ok());

  for (int i = 0; i <= 50; ++i) {
    ASSERT_TRUE(reader->Read(&response));
    EXPECT_EQ(response.version(), ++version);
    EXPECT_EQ(response.updated().load().progress(), i);
  }
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.version(), ++version);
  EXPECT_EQ(response.removed(), "a");
  EXPECT_FALSE(response.removed_died());
  context.TryCancel();
}

TEST_F(BrokerDoorTest, WhatSharingWasWorthGoesToWatchersWithinBounds) {
  ASSERT_TRUE(Register(EngineNamed("a")).ok());
  v1::EngineLoad load;
  load.set_saved_tokens(1);
  load.set_again_for_loans_tokens(2);
  load.set_again_for_losses_tokens(3);
  v1::LeaseAccount account;
  account.set_borrower_model("chat");
  account.set_lent_bytes(4);
  account.set_lent_byte_seconds(5);
  account.set_leases(6);
  v1::LeaseAccount::Ended& ended = *account.add_ended();
  ended.set_reason("need");
  ended.set_released(7);
  ended.set_fenced(8);
  for (int i = 0; i < 100; ++i) *load.add_accounts() = account;
  load.mutable_accounts(0)->set_borrower_model("no name\n");
  load.mutable_accounts(1)->add_ended()->set_reason("no name\n");
  for (int i = 0; i < 100; ++i) *load.mutable_accounts(2)->add_ended() = ended;
  ASSERT_TRUE(Heartbeat("a", load).ok());

  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, v1::WatchRequest());
  v1::WatchResponse response;
  ASSERT_TRUE(reader->Read(&response));
  const v1::EngineLoad& told = response.snapshot().engines(0).load();
  EXPECT_EQ(told.saved_tokens(), 1);
  EXPECT_EQ(told.again_for_loans_tokens(), 2);
  EXPECT_EQ(told.again_for_losses_tokens(), 3);
  ASSERT_EQ(told.accounts_size(), 63);
  EXPECT_EQ(told.accounts(0).SerializeAsString(), account.SerializeAsString());
  EXPECT_EQ(told.accounts(1).ended_size(), 16);
  context.TryCancel();
}

// Some 2 KB an account.
v1::EngineLoad LoadOf(int accounts) {
  v1::EngineLoad load;
  for (int i = 0; i < accounts * 16; ++i) {
    v1::LeaseAccount& account = i % 16 == 0 ? *load.add_accounts() : *load.mutable_accounts(i / 16);
    account.set_borrower_model("chat");
    account.add_ended()->set_reason(std::string(kMaxNameBytes, 'x'));
  }
  return load;
}

class BrokerDoorSnapshotTest : public BrokerDoorTest {
 protected:
  // Some 12 MB of a snapshot: more than gRPC takes of what nobody reads.
  void RegisterMany() {
    for (int i = 0; i < 400; ++i) {
      const std::string name = absl::StrCat("engine-", i);
      ASSERT_TRUE(Register(EngineNamed(name)).ok());
      ASSERT_TRUE(Heartbeat(name, LoadOf(14)).ok());
    }
  }
};

TEST_F(BrokerDoorTest, APartOfASnapshotIsNoLargerThoughEnginesSayAsMuchAsTheyMay) {
  constexpr int kEngines = 80;
  for (int i = 0; i < kEngines; ++i) {
    const std::string name = absl::StrCat("engine-", i);
    ASSERT_TRUE(Register(EngineNamed(name)).ok());
    ASSERT_TRUE(Heartbeat(name, LoadOf(64)).ok());
  }
  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, v1::WatchRequest());
  int engines = 0, parts = 0;
  bool more = true;
  for (v1::WatchResponse part; more; ++parts) {
    ASSERT_TRUE(reader->Read(&part));
    EXPECT_LE(part.ByteSizeLong(), (size_t{1} << 20) + 1024);
    for (const auto& engine : part.snapshot().engines()) EXPECT_LE(engine.load().ByteSizeLong(), size_t{33} << 10);
    EXPECT_EQ(part.version(), parts + 1);
    engines += part.snapshot().engines_size();
    more = part.snapshot().more();
  }
  EXPECT_EQ(engines, kEngines);
  EXPECT_GE(parts, 3);
  context.TryCancel();
}

TEST_F(BrokerDoorSnapshotTest, WhatNobodyReadsIsBoundedTogether) {
  StopBroker();
  Start({.max_unread_snapshot_bytes = 20 << 20});
  RegisterMany();
  grpc::ClientContext unread_context, refused_context, read_context;
  v1::WatchResponse first, part;
  const auto unread = stub_->Watch(&unread_context, v1::WatchRequest());
  ASSERT_TRUE(unread->Read(&first));
  SetTimeout(refused_context, absl::Minutes(1));
  const auto refused = stub_->Watch(&refused_context, v1::WatchRequest());
  EXPECT_FALSE(refused->Read(&part));
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  ASSERT_TRUE(ReadWholeSnapshot(*unread, first));  // now there is room
  const auto read = stub_->Watch(&read_context, v1::WatchRequest());
  EXPECT_TRUE(read->Read(&part));
  for (grpc::ClientContext* context : {&unread_context, &read_context}) context->TryCancel();
  unread->Finish();
  read->Finish();
}

TEST_F(BrokerDoorSnapshotTest, AReaderThatReadsNothingForLongIsCut) {
  StopBroker();
  Start({.max_unread_snapshot_bytes = 20 << 20, .stall_timeout = absl::Seconds(1)});
  RegisterMany();
  grpc::ClientContext unread_context;
  v1::WatchResponse part;
  SetTimeout(unread_context, absl::Minutes(2));
  const auto unread = stub_->Watch(&unread_context, v1::WatchRequest());
  ASSERT_TRUE(unread->Read(&part));
  bool has_room = false;
  for (const absl::Time deadline = absl::Now() + absl::Minutes(1); !has_room && absl::Now() < deadline;) {
    grpc::ClientContext context;
    const auto next = stub_->Watch(&context, v1::WatchRequest());
    has_room = next->Read(&part);
    context.TryCancel();
    next->Finish();
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_TRUE(has_room);
  while (unread->Read(&part)) {
  }
  EXPECT_EQ(unread->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(BrokerDoorTest, AReaderThatIsTooSlowIsToldAndTheOthersGoOn) {
  StopBroker();
  Start({.max_pending_watch_events = 4});
  grpc::ClientContext slow_context;
  auto slow = stub_->Watch(&slow_context, v1::WatchRequest());
  v1::WatchResponse response;
  ASSERT_TRUE(slow->Read(&response));

  // Enough to fill the windows of HTTP/2 and the queue behind them.
  ASSERT_TRUE(Register(EngineNamed("a")).ok());
  v1::EngineLoad load = LoadOf(14);
  int64_t sent = 0;
  while (metrics_.Serialize().find("watchers_dropped_total 1") == std::string::npos) {
    load.set_progress(++sent);
    ASSERT_TRUE(Heartbeat("a", load).ok());
    ASSERT_LT(sent, 5000) << "the slow reader was never dropped";
  }
  int64_t version = response.version();
  while (slow->Read(&response)) EXPECT_EQ(response.version(), ++version);
  EXPECT_LT(version, sent + 1);
  EXPECT_EQ(slow->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);

  grpc::ClientContext again_context;
  auto again = stub_->Watch(&again_context, v1::WatchRequest());
  ASSERT_TRUE(again->Read(&response));
  EXPECT_EQ(response.snapshot().engines(0).load().progress(), sent);
  again_context.TryCancel();
}

TEST_F(BrokerDoorTest, StoppingEndsStreamsWithUnavailable) {
  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, v1::WatchRequest());
  v1::WatchResponse response;
  ASSERT_TRUE(reader->Read(&response));
  StopBroker();
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(BrokerDoorTest, NobodyForgesALineOfTheLogByItsName) {
  const std::string forged = "x\nI1121 17:30:03 forged";
  fakes::LogLines log;
  grpc::ClientContext context;
  v1::WatchRequest watch;
  watch.set_watcher(forged + std::string(10'000, 'x'));
  auto reader = stub_->Watch(&context, watch);
  v1::WatchResponse response;
  ASSERT_TRUE(reader->Read(&response));
  v1::ReportLeaseRequest report;
  report.set_name(forged);
  report.set_instance_id(InstanceIdOf("t1"));
  report.set_token("t1");
  report.set_incarnation("inc-1");
  grpc::ClientContext report_context;
  v1::ReportLeaseResponse reported;
  EXPECT_EQ(stub_->ReportLease(&report_context, report, &reported).error_code(), grpc::StatusCode::UNAVAILABLE);
  context.TryCancel();
  StopBroker();
  EXPECT_THAT(log.lines(), Contains(HasSubstr("x\\nI1121")));
  EXPECT_THAT(log.lines(), Each(Not(HasSubstr("x\nI1121"))));
  for (const std::string& line : log.lines()) EXPECT_LT(line.size(), 1'000u);
}

TEST_F(BrokerDoorTest, AWatcherThatLeavesIsForgotten) {
  {
    grpc::ClientContext context;
    auto reader = stub_->Watch(&context, v1::WatchRequest());
    v1::WatchResponse response;
    ASSERT_TRUE(reader->Read(&response));
    WaitForMetric("swiftcache_broker_watchers 1");
    context.TryCancel();
    reader->Finish();
  }
  WaitForMetric("swiftcache_broker_watchers 0");
}

}  // namespace
}  // namespace swiftcache::broker::rpc
