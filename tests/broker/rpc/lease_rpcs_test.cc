// SPDX-License-Identifier: Apache-2.0
// The broker's door, the part about leases.
#include <algorithm>
#include <string>
#include <utility>

#include "common/rpc/watch_snapshot.h"
#include "tests/broker/rpc/door_fixture.h"

namespace swiftcache::broker::rpc {
namespace {

using ::testing::HasSubstr;

TEST_F(BrokerDoorLeaseTest, RegisterTellsTheTermsOfLeases) {
  EXPECT_EQ(registered_.lease_ttl().seconds(), 10);
  EXPECT_EQ(registered_.scale_down_window().seconds(), 60);
}

TEST_F(BrokerDoorLeaseTest, ALeaseGoesFromRequestToReleaseOverTheWire) {
  const v1::Lease offer = Offered(5);
  EXPECT_EQ(offer.donor(), "code");
  EXPECT_EQ(offer.donor_instance(), IdOf("code"));
  EXPECT_EQ(offer.borrower(), "chat");
  EXPECT_EQ(offer.borrower_instance(), IdOf("chat"));
  EXPECT_EQ(offer.borrower_model(), "model");
  EXPECT_EQ(offer.extent().first_block(), 95);
  EXPECT_EQ(offer.extent().num_blocks(), 5);
  EXPECT_EQ(offer.num_bytes(), 5 * 368'640);
  EXPECT_EQ(offer.borrower_blocks(), 5);
  EXPECT_EQ(offer.state(), v1::OFFERED);
  EXPECT_EQ(offer.channel(), "/run/swiftcache/code.sock");
  EXPECT_EQ(offer.capability(), "sixteen bytes...");

  EXPECT_EQ(Report("code", offer, v1::GRANTED), absl::OkStatus());
  EXPECT_EQ(SnapshotFor("").leases(0).epoch(), 9);
  EXPECT_EQ(SnapshotFor("").leases(0).state(), v1::GRANTED);
  v1::ScaleUpResponse order;
  auto need = From<v1::ScaleUpRequest>("code");
  need.set_need_blocks(1);
  EXPECT_EQ(Call(&v1::BrokerService::Stub::ScaleUp, need, &order), absl::OkStatus());
  EXPECT_THAT(order.lease_ids(), testing::ElementsAre(offer.lease_id()));
  EXPECT_EQ(Report("code", offer, v1::RELEASED), absl::OkStatus());
  EXPECT_EQ(Report("code", offer, v1::FENCED), absl::OkStatus()) << "it has ended";
  EXPECT_EQ(SnapshotFor("").leases_size(), 0);
}

TEST_F(BrokerDoorLeaseTest, WhatTheWindowLeavesIsLent) {
  v1::RequestLeaseResponse response;
  EXPECT_EQ(Call(&v1::BrokerService::Stub::RequestLease, WantBlocks(1000), &response), absl::OkStatus());
  int64_t blocks = 0;
  for (const v1::Lease& lease : response.leases()) blocks += lease.extent().num_blocks();
  EXPECT_EQ(blocks, 80);
}

TEST_F(BrokerDoorLeaseTest, WhoGetsLessThanItsShareHearsOfWhatIsComing) {
  ASSERT_EQ(Register(Sharing("third"), TokenOf("third")), absl::OkStatus());
  const v1::Lease lease = Offered(40);
  ASSERT_EQ(Report("code", lease, v1::GRANTED), absl::OkStatus());
  v1::RevokeLeaseRequest revocation;
  revocation.set_lease_id(lease.lease_id());
  v1::RevokeLeaseResponse revoked;
  ASSERT_EQ(Call(&v1::BrokerService::Stub::RevokeLease, revocation, &revoked), absl::OkStatus());
  auto request = From<v1::RequestLeaseRequest>("third");
  request.set_request_key("k");
  request.set_want_bytes(1000 * 368'640);
  v1::RequestLeaseResponse response;
  EXPECT_EQ(Call(&v1::BrokerService::Stub::RequestLease, request, &response), absl::OkStatus());
  EXPECT_EQ(response.coming_bytes(), 40 * 368'640) << response.shortage();
}

TEST_F(BrokerDoorLeaseTest, ARetriedRequestGetsTheSameLeases) {
  const v1::Lease offer = Offered(5);
  EXPECT_EQ(Offered(5).lease_id(), offer.lease_id());
  EXPECT_EQ(SnapshotFor("").leases_size(), 1);
}

TEST_F(BrokerDoorLeaseTest, ACapabilityGoesToDonorAndBorrowerAlone) {
  Offered(5);
  EXPECT_EQ(SnapshotFor("chat").leases(0).capability(), "sixteen bytes...");
  EXPECT_EQ(SnapshotFor("code").leases(0).capability(), "sixteen bytes...");
  EXPECT_EQ(SnapshotFor("other").leases_size(), 0);
  EXPECT_EQ(SnapshotFor("").leases(0).capability(), "");

  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, v1::WatchRequest());
  v1::WatchResponse response;
  ASSERT_TRUE(reader->Read(&response));
  ASSERT_TRUE(Report("code", SnapshotFor("code").leases(0), v1::GRANTED).ok());
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.lease().state(), v1::GRANTED);
  EXPECT_EQ(response.lease().capability(), "");
  context.TryCancel();
}

// Names and instance ids are in everybody's snapshot; the token is not.
TEST_F(BrokerDoorLeaseTest, WhoOnlyKnowsAnInstanceCanNeitherReadNorSayAnythingForIt) {
  const v1::Lease offer = Offered(5);
  const v1::WatchResponse::Snapshot published = SnapshotFor("");
  EXPECT_EQ(published.ShortDebugString().find("token of"), std::string::npos);
  for (const std::string& token : {std::string(), std::string("guessed"), TokenOf("code"), IdOf("chat")}) {
    grpc::ClientContext context;
    v1::WatchRequest watch;
    watch.set_instance_id(offer.borrower_instance());
    watch.set_token(token);
    auto reader = stub_->Watch(&context, watch);
    v1::WatchResponse response;
    EXPECT_FALSE(reader->Read(&response));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);

    const auto as_chat = [&](auto request) {
      request.set_name("chat");
      request.set_instance_id(offer.borrower_instance());
      if constexpr (requires { request.incarnation(); }) request.set_incarnation("inc-1");
      request.set_token(token);
      return request;
    };
    const auto code_of = [&](auto method, const auto& request, auto answer) {
      return Call(method, as_chat(request), &answer).code();
    };
    using Stub = v1::BrokerService::Stub;
    const absl::StatusCode denied = absl::StatusCode::kPermissionDenied;
    auto report = From<v1::ReportLeaseRequest>("chat");
    *report.mutable_lease() = offer;
    report.mutable_lease()->set_state(v1::RELEASED);
    EXPECT_EQ(code_of(&Stub::ReportLease, report, v1::ReportLeaseResponse()), denied);
    EXPECT_EQ(code_of(&Stub::RequestLease, WantBlocks(1), v1::RequestLeaseResponse()), denied);
    EXPECT_EQ(code_of(&Stub::ScaleUp, v1::ScaleUpRequest(), v1::ScaleUpResponse()), denied);
    EXPECT_EQ(code_of(&Stub::ReportWindow, v1::ReportWindowRequest(), v1::ReportWindowResponse()), denied);
    EXPECT_EQ(code_of(&Stub::Heartbeat, v1::HeartbeatRequest(), v1::HeartbeatResponse()), denied);
    EXPECT_EQ(code_of(&Stub::Deregister, v1::DeregisterRequest(), v1::DeregisterResponse()), denied);
    v1::RegisterRequest again = RegisterRequestFor(Sharing("chat"), TokenOf("chat"));
    again.set_token(token);
    v1::RegisterResponse registered;
    EXPECT_EQ(Call(&Stub::Register, again, &registered).code(), denied);
  }
  EXPECT_EQ(SnapshotFor("").SerializeAsString(), published.SerializeAsString());
}

TEST_F(BrokerDoorLeaseTest, AHeartbeatTellsADonorHowItsBorrowersWeigh) {
  ASSERT_TRUE(Register(Sharing("other"), TokenOf("other")).ok());
  for (const auto& [name, want_bytes] : {std::pair("chat", int64_t{1}), std::pair("other", int64_t{1} << 40)}) {
    auto request = From<v1::RequestLeaseRequest>(name);
    request.set_request_key("1");
    request.set_want_bytes(want_bytes);
    v1::RequestLeaseResponse response;
    ASSERT_EQ(Call(&v1::BrokerService::Stub::RequestLease, request, &response), absl::OkStatus());
    EXPECT_TRUE(std::any_of(response.leases().begin(), response.leases().end(),
                            [](const v1::Lease& lease) { return lease.donor() == "code"; }));
  }
  v1::HeartbeatResponse heard;
  ASSERT_EQ(Call(&v1::BrokerService::Stub::Heartbeat, From<v1::HeartbeatRequest>("code"), &heard), absl::OkStatus());
  ASSERT_EQ(heard.weights_size(), 2);
  for (const auto& borrower : heard.weights()) {
    EXPECT_TRUE(borrower.instance_id() == InstanceIdOf(TokenOf("chat")) ||
                borrower.instance_id() == InstanceIdOf(TokenOf("other")));
    EXPECT_GT(borrower.weight(), 1);
  }
}

TEST_F(BrokerDoorLeaseTest, RefusalsHaveTheCodesOfTheContract) {
  const v1::Lease offer = Offered(5);
  EXPECT_EQ(Report("chat", offer, v1::FENCED).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Report("code", v1::Lease(), v1::GRANTED).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Report("code", offer, v1::LEASE_STATE_UNSPECIFIED).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Report("code", offer, v1::REVOKING).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(Report("code", offer, v1::GRANTED), absl::OkStatus());
  EXPECT_EQ(Report("code", offer, v1::GRANTED, 10).code(), absl::StatusCode::kFailedPrecondition);
  v1::RequestLeaseResponse response;
  EXPECT_EQ(Call(&v1::BrokerService::Stub::RequestLease, WantBlocks(0, "k2"), &response).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Call(&v1::BrokerService::Stub::RequestLease, WantBlocks(1, std::string(129, 'k')), &response).code(),
            absl::StatusCode::kInvalidArgument);
  auto stale = WantBlocks(1, "k3");
  stale.set_incarnation("inc-0");
  EXPECT_EQ(Call(&v1::BrokerService::Stub::RequestLease, stale, &response).code(), absl::StatusCode::kUnavailable);
  v1::ReportWindowResponse window;
  auto negative = From<v1::ReportWindowRequest>("chat");
  negative.set_waiting_blocks(-1);
  EXPECT_EQ(Call(&v1::BrokerService::Stub::ReportWindow, negative, &window).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(BrokerDoorLeaseTest, OperatorsLimitAModelAndRevokeALease) {
  const v1::Lease offer = Offered(5);
  v1::RevokeLeaseRequest revoke;
  v1::RevokeLeaseResponse revoked;
  EXPECT_EQ(Call(&v1::BrokerService::Stub::RevokeLease, revoke, &revoked).code(), absl::StatusCode::kNotFound);
  revoke.set_lease_id(offer.lease_id());
  EXPECT_EQ(Call(&v1::BrokerService::Stub::RevokeLease, revoke, &revoked), absl::OkStatus());
  EXPECT_EQ(SnapshotFor("").leases(0).state(), v1::REVOKING);
  EXPECT_EQ(SnapshotFor("").leases(0).revoke_reason(), v1::OPERATOR);

  v1::LimitLeaseRequest limit;
  v1::LimitLeaseResponse limited;
  limit.set_max_borrowed_bytes(0);
  const auto code_of_limit = [&] { return Call(&v1::BrokerService::Stub::LimitLease, limit, &limited).code(); };
  EXPECT_EQ(code_of_limit(), absl::StatusCode::kInvalidArgument);  // of no model
  limit.set_model_name("model");
  EXPECT_EQ(code_of_limit(), absl::StatusCode::kOk);
  v1::RequestLeaseResponse response;
  EXPECT_EQ(Call(&v1::BrokerService::Stub::RequestLease, WantBlocks(1, "k2"), &response), absl::OkStatus());
  EXPECT_EQ(response.leases_size(), 0);
  EXPECT_THAT(response.shortage(), HasSubstr("limit on model 'model'"));
  ASSERT_EQ(SnapshotFor("").limits_size(), 1);
  EXPECT_EQ(SnapshotFor("").limits(0).model_name(), "model");
  EXPECT_TRUE(SnapshotFor("").limits(0).has_max_borrowed_bytes());
  limit.clear_max_borrowed_bytes();
  EXPECT_EQ(code_of_limit(), absl::StatusCode::kOk);
  EXPECT_EQ(SnapshotFor("").limits_size(), 0);
  EXPECT_EQ(Call(&v1::BrokerService::Stub::RequestLease, WantBlocks(1, "k3"), &response), absl::OkStatus());
  EXPECT_EQ(response.leases_size(), 1);
}

TEST_F(BrokerDoorLeaseTest, ARestartedBrokerTakesTheLeasesFromRegistrations) {
  const v1::Lease offer = Offered(5);
  ASSERT_TRUE(Report("code", offer, v1::GRANTED).ok());
  const v1::Lease held = SnapshotFor("code").leases(0);
  StopBroker();
  Start({});
  for (const char* name : {"chat", "code"}) {
    v1::RegisterRequest request = RegisterRequestFor(Sharing(name), TokenOf(name));
    *request.add_leases() = held;
    v1::RegisterResponse response;
    ASSERT_TRUE(Call(&v1::BrokerService::Stub::Register, request, &response).ok());
  }
  const v1::WatchResponse::Snapshot snapshot = SnapshotFor("code");
  ASSERT_EQ(snapshot.leases_size(), 1);
  EXPECT_EQ(snapshot.leases(0).SerializeAsString(), held.SerializeAsString());
}

TEST_F(BrokerDoorLeaseTest, ALargeSnapshotComesInPartsThatAreReadAsOne) {
  v1::RegisterRequest donor = RegisterRequestFor(Sharing("code"), TokenOf("code"));
  donor.mutable_engine()->mutable_kv()->set_num_blocks(2000);
  for (int i = 0; i < 1200; ++i) {
    v1::Lease& lease = *donor.add_leases();
    lease.set_lease_id(i + 1);
    lease.set_donor("code");
    lease.set_donor_instance(IdOf("code"));
    lease.set_borrower("chat");
    lease.set_borrower_instance(IdOf("chat"));
    lease.set_borrower_model("model");
    lease.mutable_extent()->set_first_block(i);
    lease.mutable_extent()->set_num_blocks(1);
    lease.set_num_bytes(368'640);
    lease.set_borrower_blocks(1);
    lease.set_epoch(9);
    lease.set_state(v1::GRANTED);
    lease.set_channel(donor.engine().lease_channel());
    lease.set_capability("secret");
  }
  v1::RegisterResponse registered;
  ASSERT_EQ(Call(&v1::BrokerService::Stub::Register, donor, &registered), absl::OkStatus());
  for (const char* name : {"", "chat"}) {
    grpc::ClientContext context;
    v1::WatchRequest request;
    if (name[0] != 0) request.set_instance_id(IdOf(name));
    if (name[0] != 0) request.set_token(TokenOf(name));
    auto reader = stub_->Watch(&context, request);
    v1::WatchResponse response;
    ASSERT_TRUE(reader->Read(&response));
    EXPECT_LT(response.snapshot().leases_size(), 1200);
    EXPECT_TRUE(response.snapshot().more());
    ASSERT_TRUE(ReadWholeSnapshot(*reader, response));
    EXPECT_EQ(response.snapshot().leases_size(), 1200);
    EXPECT_EQ(response.snapshot().engines_size(), name[0] != 0 ? 0 : 2);
    EXPECT_FALSE(response.snapshot().more());
    EXPECT_GT(response.version(), 1);
    context.TryCancel();
  }
}

}  // namespace
}  // namespace swiftcache::broker::rpc
