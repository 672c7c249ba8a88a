// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/lease_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/rpc/server.h"
#include "tests/fakes/call_log.h"
#include "tests/fakes/fake_broker_service.h"
#include "tests/fakes/log_lines.h"

namespace swiftcache::engine::rpc {
namespace {

using coordinator::LeaseEvent;
using coordinator::LeaseResponse;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// What the coordinator would hear, in words.
class Listener final : public coordinator::LeaseBrokerEvents {
 public:
  const CallLog& log() const { return log_; }
  void OnLease(const lease::Lease& lease) override {
    const bool revoking = lease.state == lease::State::kRevoking;
    log_.Add(absl::StrCat("lease ", lease.id.value(), " ", lease::StateName(lease.state),
                          revoking ? absl::StrCat(" for ", lease::EndingName(lease.revoke_reason)) : ""));
  }
  void OnLeases(const std::vector<lease::Lease>& leases) override {
    for (const lease::Lease& lease : leases) {
      log_.Add(absl::StrCat("knows ", lease.id.value(), " ", lease::StateName(lease.state)));
    }
  }
  void OnLeaseResponse(absl::StatusOr<LeaseResponse> answer) override {
    log_.Add(answer.ok() ? absl::StrCat("answer ", answer->offered_bytes, " ", answer->lendable_bytes, " ",
                                        answer->coming_bytes, answer->shortage)
                         : absl::StrCat("answer ", absl::StatusCodeToString(answer.status().code())));
  }
  void OnScaleUp(int64_t question, absl::StatusOr<std::vector<kv::LeaseId>> leases) override {
    std::string text = absl::StrCat("advice ", question, ":");
    if (!leases.ok()) absl::StrAppend(&text, " ", absl::StatusCodeToString(leases.status().code()));
    if (leases.ok()) {
      for (const kv::LeaseId id : *leases) absl::StrAppend(&text, " ", id.value());
    }
    log_.Add(text);
  }
  void OnTerms(const coordinator::LeaseTerms&) override {}
  void OnReportRefused(const LeaseEvent& news, const absl::Status& why) override {
    log_.Add(absl::StrCat("refused ", news.lease.id.value(), " ", absl::StatusCodeToString(why.code())));
  }

 private:
  CallLog log_;
};

LeaseEvent Said(int64_t id, lease::State state, uint64_t epoch = 0) {
  return {.lease = {.id = kv::LeaseId(id), .epoch = kv::Epoch(epoch), .state = state}, .reason = "why not"};
}

class LeaseClientTest : public testing::Test {
 protected:
  LeaseClientTest() {
    auto server = RpcServer::Create({.listen = "127.0.0.1:0"}, {&broker_});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  ~LeaseClientTest() override {
    if (!go_on_.HasBeenNotified()) go_on_.Notify();
    client_.reset();
    broker_.Stop();
    server_->Stop(absl::InfinitePast());
  }
  // In the broker: an answer that waits for go_on_, and the test's end.
  grpc::Status Hold() {
    if (!held_.HasBeenNotified()) held_.Notify();
    go_on_.WaitForNotification();
    return grpc::Status::OK;
  }
  LeaseClient& Start(absl::Duration advice_timeout = absl::Seconds(10)) {
    client_ = LeaseClient::Create(
        {.broker = server_->address(),
         .instance_id = "me",
         .token = "secret",
         .identity =
             [this] {
               const bool watched = broker_.streams() > 0;
               absl::MutexLock lock(&mutex_);
               if (watched && joins_once_it_watches_) incarnation_ = "b1";
               return LeaseClient::Identity{"chat", incarnation_};
             },
         .on_limit =
             [this](const v1::LeaseLimit& limit) {
               const std::string max =
                   limit.has_max_borrowed_bytes() ? absl::StrCat(limit.max_borrowed_bytes()) : "none";
               limits_.Add(absl::StrCat(limit.model_name(), " ", max, " ", limit.set_at_micros()));
             },
         .on_incarnation = [this](const std::string& incarnation) { limits_.Add(incarnation); },
         .rpc_timeout = absl::Seconds(10),
         .advice_timeout = advice_timeout,
         .retry_interval = absl::Milliseconds(5)},
        events_);
    return *client_;
  }
  // It may take more than one try to connect, and a call fails with the first.
  LeaseClient& StartConnected(absl::Duration advice_timeout = absl::Seconds(10)) {
    Start(advice_timeout);
    while (broker_.streams() == 0) absl::SleepFor(absl::Milliseconds(1));
    return *client_;
  }
  void SetIncarnation(const std::string& incarnation) {
    absl::MutexLock lock(&mutex_);
    incarnation_ = incarnation;
  }
  static v1::Lease Lease(int64_t id, v1::LeaseState state, const std::string& donor_instance = "me") {
    v1::Lease lease;
    lease.set_lease_id(id);
    lease.set_state(state);
    lease.set_donor_instance(donor_instance);
    lease.set_borrower_instance("other");
    return lease;
  }
  static v1::WatchResponse News(int64_t version, const v1::Lease& lease) {
    v1::WatchResponse news;
    news.set_incarnation("b1");
    news.set_version(version);
    *news.mutable_lease() = lease;
    return news;
  }
  static v1::WatchResponse Whole(int64_t version, const std::vector<v1::Lease>& leases) {
    v1::WatchResponse news = fakes::Snapshot("b1", version, {});
    for (const v1::Lease& lease : leases) *news.mutable_snapshot()->add_leases() = lease;
    return news;
  }

  absl::Notification held_, go_on_;  // outlive the server below
  fakes::FakeBrokerService broker_;
  std::unique_ptr<RpcServer> server_;
  Listener events_;
  CallLog limits_;  // and incarnations
  absl::Mutex mutex_;
  std::string incarnation_ ABSL_GUARDED_BY(mutex_) = "b1";
  bool joins_once_it_watches_ = false;
  std::unique_ptr<LeaseClient> client_;
};

TEST_F(LeaseClientTest, AReportSaysWhoWhatAndAtWhichEpoch) {
  v1::ReportLeaseRequest seen;
  broker_.on_report = [&](const v1::ReportLeaseRequest& request) {
    seen = request;
    return grpc::Status::OK;
  };
  Start().Report(Said(7, lease::State::kGranted));
  Start().Report(Said(8, lease::State::kFenced, 12));  // a client that ends ends cleanly
  ASSERT_TRUE(broker_.log().WaitFor("ReportLease 8"));
  client_.reset();
  broker_.on_report = nullptr;
  EXPECT_EQ(seen.lease().lease_id(), 8);
  EXPECT_EQ(seen.lease().state(), v1::FENCED);
  EXPECT_EQ(seen.lease().epoch(), 12);
  EXPECT_EQ(seen.reason(), "why not");
  EXPECT_EQ(seen.name(), "chat");
  EXPECT_EQ(seen.instance_id(), "me");
  EXPECT_EQ(seen.token(), "secret");
  EXPECT_EQ(seen.incarnation(), "b1");
}

TEST_F(LeaseClientTest, OnlyWhoGoesOnSaysThatItWatchesAgain) {
  fakes::LogLines log;
  const auto again = Contains(HasSubstr("the broker's news of leases ended; leases live on, watching again"));
  broker_.Play({Whole(1, {})}, /*stay_open=*/false);
  broker_.Play({Whole(2, {Lease(7, v1::GRANTED)})});
  Start();
  ASSERT_TRUE(events_.log().WaitFor("knows 7 granted"));
  EXPECT_THAT(log.lines(), again) << "the first stream ended";
  fakes::LogLines at_the_end;
  client_.reset();
  EXPECT_THAT(at_the_end.lines(), Not(again));
}

// It was "donor" when the lease was made, and another engine has that name now.
TEST_F(LeaseClientTest, AReportIsOfTheNameThatTheEngineHasNow) {
  std::string donor;
  broker_.on_report = [&](const v1::ReportLeaseRequest& request) {
    donor = request.lease().donor();
    return grpc::Status::OK;
  };
  LeaseEvent said = Said(7, lease::State::kGranted);
  said.lease.donor = "donor";
  Start().Report(said);
  ASSERT_TRUE(broker_.log().WaitFor("ReportLease 7"));
  client_.reset();
  broker_.on_report = nullptr;
  EXPECT_EQ(donor, "chat");
}

TEST_F(LeaseClientTest, ReportsWaitForABrokerThatIsAwayAndKeepTheirOrder) {
  // Shared: the server answers the last report when the test has seen it come, and may be over.
  const auto answers = std::make_shared<std::atomic<int>>(0);
  broker_.on_report = [answers](const v1::ReportLeaseRequest&) {
    switch ((*answers)++) {
      case 0:
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "away");
      case 1:
        return grpc::Status(grpc::StatusCode::INTERNAL, "says who stands between");
      case 2:
        return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "likewise");
      default:
        return grpc::Status::OK;
    }
  };
  Start();
  for (int64_t id : {1, 2, 3}) client_->Report(Said(id, lease::State::kReleased));
  ASSERT_TRUE(broker_.log().WaitFor("ReportLease 3"));
  EXPECT_THAT(broker_.log().calls(), ElementsAre("ReportLease 1", "ReportLease 1", "ReportLease 1", "ReportLease 1",
                                                 "ReportLease 2", "ReportLease 3"));
  EXPECT_TRUE(events_.log().calls().empty()) << "a broker that is away refuses nothing";
}

TEST_F(LeaseClientTest, ReportsWaitForTheRegistration) {
  SetIncarnation("");
  Start().Report(Said(1, lease::State::kReleased));
  client_->RequestLease({.key = "1", .want_bytes = 100, .waiting_tokens = 5});  // behind it
  absl::Notification asked;
  EXPECT_FALSE(asked.WaitForNotificationWithTimeout(absl::Milliseconds(30)));
  EXPECT_TRUE(broker_.log().calls().empty());
  SetIncarnation("b1");
  ASSERT_TRUE(broker_.log().WaitFor("RequestLease 1"));
  EXPECT_THAT(broker_.log().calls(), ElementsAre("ReportLease 1", "RequestLease 1"));
}

TEST_F(LeaseClientTest, AReportThatIsRefusedIsToldAndNotRepeated) {
  broker_.on_report = [](const v1::ReportLeaseRequest& request) {
    return request.lease().lease_id() == 1 ? grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "it overlaps")
                                           : grpc::Status::OK;
  };
  Start().Report(Said(1, lease::State::kReleased));
  client_->Report(Said(2, lease::State::kReleased));
  ASSERT_TRUE(broker_.log().WaitFor("ReportLease 2"));
  EXPECT_THAT(events_.log().calls(), ElementsAre("refused 1 FAILED_PRECONDITION"));
  EXPECT_EQ(broker_.log().Count("ReportLease 1"), 1);
}

TEST_F(LeaseClientTest, AReportToABrokerThatRestartedIsRepeatedUntilTheEngineIsRegisteredThere) {
  broker_.on_report = [this](const v1::ReportLeaseRequest& request) {
    if (request.incarnation() == "b2") return grpc::Status::OK;
    SetIncarnation("b2");  // as the heartbeat does
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "another incarnation");
  };
  Start().Report(Said(1, lease::State::kGranted));
  ASSERT_TRUE(broker_.log().WaitFor("ReportLease 1", 2));
  client_->RequestLease({.key = "1", .want_bytes = 100, .waiting_tokens = 5});
  ASSERT_TRUE(broker_.log().WaitFor("RequestLease 1"));
  EXPECT_THAT(events_.log().calls(), Not(Contains(HasSubstr("refused"))));
}

TEST_F(LeaseClientTest, AWishIsAnsweredAndItsKeyIsTheOneGiven) {
  broker_.on_request = [](const v1::RequestLeaseRequest& request, v1::RequestLeaseResponse& response) {
    EXPECT_EQ(request.want_bytes(), 100);
    EXPECT_EQ(request.waiting_tokens(), 5);
    EXPECT_EQ(request.held_bytes(), 60);
    response.add_leases()->set_num_bytes(30);
    response.add_leases()->set_num_bytes(40);
    response.set_lendable_bytes(500);
    response.set_coming_bytes(600);
    response.set_shortage("!");
    return grpc::Status::OK;
  };
  StartConnected().RequestLease({.key = "17", .want_bytes = 100, .waiting_tokens = 5, .held_bytes = 60});
  ASSERT_TRUE(events_.log().WaitFor("answer 70 500 600!"));
  EXPECT_EQ(broker_.log().Count("RequestLease 17"), 1);
}

TEST_F(LeaseClientTest, AWishThatFindsNoBrokerIsAnsweredAndNotRepeatedByItself) {
  broker_.on_request = [](const v1::RequestLeaseRequest&, v1::RequestLeaseResponse&) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "away");
  };
  StartConnected().RequestLease({.key = "17", .want_bytes = 100, .waiting_tokens = 5, .held_bytes = 60});
  ASSERT_TRUE(events_.log().WaitFor("answer UNAVAILABLE"));
  client_->ReportWindow({.used_blocks = 5});
  ASSERT_TRUE(broker_.log().WaitFor("ReportWindow 5"));
  EXPECT_EQ(broker_.log().Count("RequestLease 17"), 1);
}

TEST_F(LeaseClientTest, OfWindowsThatWaitTheLastIsSent) {
  broker_.on_report = [this](const v1::ReportLeaseRequest&) { return Hold(); };
  Start().Report(Said(1, lease::State::kReleased));
  held_.WaitForNotification();
  for (int64_t used : {1, 2, 3}) client_->ReportWindow({.used_blocks = used});
  go_on_.Notify();
  ASSERT_TRUE(broker_.log().WaitFor("ReportWindow 3"));
  EXPECT_THAT(broker_.log().calls(), ElementsAre("ReportLease 1", "ReportWindow 3"));
}

TEST_F(LeaseClientTest, AdviceOvertakesReportsThatWait) {
  broker_.on_report = [this](const v1::ReportLeaseRequest&) { return Hold(); };
  broker_.on_scale_up = [](const v1::ScaleUpRequest&, v1::ScaleUpResponse& response) {
    response.add_lease_ids(4);
    response.add_lease_ids(2);
    return grpc::Status::OK;
  };
  Start().Report(Said(1, lease::State::kReleased));
  held_.WaitForNotification();
  client_->RequestScaleUp(5, 12);
  EXPECT_TRUE(events_.log().WaitFor("advice 5: 4 2"));
}

TEST_F(LeaseClientTest, AdviceThatTakesTooLongIsNone) {
  broker_.on_scale_up = [this](const v1::ScaleUpRequest&, v1::ScaleUpResponse&) { return Hold(); };
  StartConnected(/*advice_timeout=*/absl::Seconds(1)).RequestScaleUp(5, 12);
  EXPECT_TRUE(events_.log().WaitFor("advice 5: DEADLINE_EXCEEDED"));
}

TEST_F(LeaseClientTest, WatchTellsOfOwnLeasesAndOfNoOthers) {
  broker_.Play({Whole(5, {Lease(1, v1::GRANTED), Lease(2, v1::GRANTED, "somebody")}), News(6, Lease(3, v1::OFFERED)),
                News(7, Lease(4, v1::OFFERED, "somebody")), News(8, Lease(1, v1::RELEASED))});
  Start();
  ASSERT_TRUE(events_.log().WaitFor("lease 1 released"));
  EXPECT_THAT(events_.log().calls(), ElementsAre("knows 1 granted", "lease 3 offered", "lease 1 released"));
}

TEST_F(LeaseClientTest, WhyALeaseIsRevokedIsTold) {
  const std::vector<std::pair<int, std::string>> reasons = {{v1::OPERATOR, "operator"},
                                                            {v1::LIMIT, "limit"},
                                                            {v1::FAIRNESS, "fairness"},
                                                            {v1::BORROWER_GONE, "borrower_gone"},
                                                            {v1::REVOKE_REASON_UNSPECIFIED, "broker"},
                                                            {77, "broker"}};
  std::vector<v1::WatchResponse> told = {Whole(1, {})};
  std::vector<std::string> heard;
  for (const auto& [reason, name] : reasons) {
    v1::Lease lease = Lease(static_cast<int64_t>(told.size()), v1::REVOKING);
    lease.set_revoke_reason(static_cast<v1::RevokeReason>(reason));
    heard.push_back(absl::StrCat("lease ", told.size(), " revoking for ", name));
    told.push_back(News(static_cast<int64_t>(told.size()) + 1, lease));
  }
  broker_.Play(told);
  Start();
  ASSERT_TRUE(events_.log().WaitFor(heard.back()));
  EXPECT_EQ(events_.log().calls(), heard);
}

TEST_F(LeaseClientTest, AGapInTheNewsStartsANewStream) {
  broker_.Play({Whole(5, {}), News(7, Lease(3, v1::OFFERED))});  // 6 was lost
  broker_.Play({Whole(7, {Lease(2, v1::REVOKING), Lease(3, v1::OFFERED)})});
  Start();
  ASSERT_TRUE(events_.log().WaitFor("knows 3 offered"));
  EXPECT_THAT(events_.log().calls(), ElementsAre("knows 2 revoking", "knows 3 offered"));
  EXPECT_EQ(broker_.streams(), 2);
}

TEST_F(LeaseClientTest, ASnapshotInPartsIsTakenWhole) {
  v1::WatchResponse first = Whole(1, {Lease(1, v1::GRANTED)});
  first.mutable_snapshot()->set_more(true);
  broker_.Play({first, Whole(2, {Lease(2, v1::GRANTED)}), News(3, Lease(3, v1::OFFERED))});
  Start();
  ASSERT_TRUE(events_.log().WaitFor("lease 3 offered"));
  EXPECT_THAT(events_.log().calls(), ElementsAre("knows 1 granted", "knows 2 granted", "lease 3 offered"));
}

TEST_F(LeaseClientTest, LimitsAreToldAndSoIsWhichBrokerAnswers) {
  v1::WatchResponse whole = Whole(1, {});
  v1::LeaseLimit limit;
  limit.set_model_name("chat");
  limit.set_max_borrowed_bytes(5);
  limit.set_set_at_micros(9);
  *whole.mutable_snapshot()->add_limits() = limit;
  v1::WatchResponse lifted;
  lifted.set_incarnation("b1");
  lifted.set_version(2);
  lifted.mutable_limit()->set_model_name("chat");
  lifted.mutable_limit()->set_set_at_micros(10);
  broker_.Play({whole, lifted});
  Start();
  ASSERT_TRUE(limits_.WaitFor("chat none 10"));
  EXPECT_THAT(limits_.calls(), ElementsAre("b1", "chat 5 9", "chat none 10"));
}

TEST_F(LeaseClientTest, WhatWasToldBeforeTheRegistrationIsToldAgainAfterIt) {
  SetIncarnation("");
  for (int i = 0; i < 1000; ++i) broker_.Play({Whole(5, {Lease(1, v1::RELEASED)})});
  Start();
  while (broker_.streams() < 3) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(events_.log().calls().empty()) << "of a broker that does not know this engine";
  SetIncarnation("b1");
  ASSERT_TRUE(events_.log().WaitFor("knows 1 released"));
}

// What it holds is not in that snapshot.
TEST_F(LeaseClientTest, ASnapshotThatTheRegistrationOvertookTellsNothing) {
  SetIncarnation("");
  joins_once_it_watches_ = true;
  broker_.Play({Whole(5, {Lease(1, v1::GRANTED)})});
  broker_.Play({Whole(6, {Lease(2, v1::GRANTED)})});
  Start();
  ASSERT_TRUE(events_.log().WaitFor("knows 2 granted"));
  EXPECT_THAT(events_.log().calls(), ElementsAre("knows 2 granted"));
}

}  // namespace
}  // namespace swiftcache::engine::rpc
