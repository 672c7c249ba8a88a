// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "common/rpc/server.h"
#include "tests/fakes/fake_gateway_service.h"

namespace swiftcache::services::ctl {
namespace {

using ::testing::HasSubstr;

class ClientTest : public ::testing::Test {
 protected:
  void Start() {
    auto server = RpcServer::Create({.listen = "127.0.0.1:0"}, {&gateway_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    client_ = std::make_unique<Client>(server_->address());
    // On a busy machine the first attempt to connect may take more than the second that it is given.
    for (int tries = 0; tries < 400 && absl::IsUnavailable(Resolve("")); ++tries) {
      absl::SleepFor(absl::Milliseconds(50));
    }
  }
  absl::Status Generate() {
    return client_->Generate(v1::GenerateRequest(), [](const v1::GenerateResponse&) {}).status();
  }
  absl::Status Resolve(const std::string& model, absl::Duration wait = absl::ZeroDuration()) {
    return client_->ResolveModel(model, wait).status();
  }

  fakes::FakeGatewayService gateway_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(ClientTest, WhatTheGatewaySaysOfItsEnginesIsPassedOn) {
  const std::string said = "engine chat: failed to connect to all addresses";
  gateway_.answer = grpc::Status(grpc::StatusCode::UNAVAILABLE, said);
  Start();
  EXPECT_EQ(Generate(), absl::UnavailableError(said));
}

TEST_F(ClientTest, WhereNobodyAnswersTheAddressIsNamed) {
  Start();
  const std::string address = server_->address();
  server_.reset();
  client_ = std::make_unique<Client>(address);  // the other one may not have noticed yet
  const absl::Status status = Generate();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no gateway answers at " + address));
}

TEST_F(ClientTest, TheOneModelThatIsServedNeedsNoName) {
  gateway_.models = {"chat"};
  Start();
  EXPECT_EQ(*client_->ResolveModel("", absl::ZeroDuration()), "chat");
  EXPECT_EQ(Resolve("code"), absl::NotFoundError("model \"code\" is not served; served: chat"));
}

TEST_F(ClientTest, OneOfSeveralModelsIsToBeChosenWithoutAWait) {
  gateway_.models = {"chat", "code"};
  Start();
  EXPECT_EQ(Resolve("", absl::InfiniteDuration()),
            absl::InvalidArgumentError("--model is missing, wants one of: chat, code"));
}

TEST_F(ClientTest, AGatewayWithoutModelsWantsAnEngine) {
  Start();
  EXPECT_EQ(Resolve(""),
            absl::NotFoundError(
                "the gateway serves no model; is an engine ready, and at the broker that the gateway hears?"));
}

}  // namespace
}  // namespace swiftcache::services::ctl
