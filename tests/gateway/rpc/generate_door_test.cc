// SPDX-License-Identifier: Apache-2.0
#include "gateway/rpc/generate_door.h"

#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <atomic>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "tests/fakes/connected_channel.h"
#include "tests/fakes/log_lines.h"
#include "tests/gateway/relay/relay_fixture.h"

namespace swiftcache::gateway {
namespace {

using fakes::FakeCall;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class GenerateDoorTest : public RelayFixture {
 protected:
  explicit GenerateDoorTest(absl::Duration stall_timeout = absl::Minutes(10))
      : door_(*relay_,
              {.stream = {.max_unread_bytes = 1 << 20,
                          .stall_timeout = stall_timeout,
                          .on_slow_reader_cut = [this] { ++cut_; }}},
              clock_) {
    server_ = *RpcServer::Create({.listen = "127.0.0.1:0"}, {&door_});
    stub_ = v1::GenerateService::NewStub(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }
  ~GenerateDoorTest() override {
    server_->Stop(absl::Now());
    relay_->Stop(absl::Now());
  }
  static v1::GenerateRequest Request(const std::string& prompt) {
    v1::GenerateRequest request;
    request.set_model("m");
    request.set_prompt(prompt);
    return request;
  }
  absl::Status Generate(const v1::GenerateRequest& request, std::vector<v1::GenerateResponse>* responses = nullptr) {
    grpc::ClientContext context;
    auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
      if (responses != nullptr) responses->push_back(response);
    }
    return FromGrpc(reader->Finish());
  }

  std::atomic<int> cut_ = 0;  // slow readers
  rpc::GenerateDoor door_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::GenerateService::Stub> stub_;
};

TEST_F(GenerateDoorTest, StreamsOneMessagePerTokenWithRequestIdAndUsage) {
  Serve({"a"});
  std::vector<v1::GenerateResponse> responses;
  ASSERT_EQ(Generate(Request("hi"), &responses), absl::OkStatus());
  ASSERT_EQ(responses.size(), 6);
  std::string text;
  for (const v1::GenerateResponse& response : responses) {
    EXPECT_THAT(response.request_id(), HasSubstr("test-"));
    text += response.text();
  }
  EXPECT_EQ(text, "hello");
  EXPECT_FALSE(responses[4].has_finish_reason());
  EXPECT_EQ(responses[5].finish_reason(), v1::STOP);
  EXPECT_EQ(responses[5].usage().prompt_tokens(), 2);
  EXPECT_EQ(responses[5].usage().cached_tokens().local(), 3);
}

TEST_F(GenerateDoorTest, ErrorsKeepTheirCode) {
  Serve({"a"});
  EXPECT_EQ(Generate(Request("")).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Generate(Request(std::string(100, 'x'))).code(), absl::StatusCode::kOutOfRange);
  v1::GenerateRequest unknown = Request("x");
  unknown.set_model("other");
  EXPECT_EQ(Generate(unknown).code(), absl::StatusCode::kNotFound);
  v1::GenerateRequest nothing;
  nothing.set_model("m");
  const absl::Status status = Generate(nothing);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("prompt, token_ids, chat"));
}

TEST_F(GenerateDoorTest, TemplateVariablesOfAChatReachItsTemplate) {
  engines_["a"].SetCard(fakes::ByteModelCard("{{ flag }} {{ whole }} {{ number }} {{ text }} {{ none }}"));
  Serve({"a"});
  v1::TokenizeRequest request;
  request.set_model("m");
  auto& variables = *request.mutable_chat()->mutable_chat_template_kwargs();
  request.mutable_chat()->add_messages()->set_role("user");
  variables["flag"].set_flag(true);
  variables["whole"].set_whole(-7);
  variables["number"].set_number(0.5);
  variables["text"].set_text("me");
  variables["none"] = {};
  grpc::ClientContext context;
  v1::TokenizeResponse response;
  ASSERT_TRUE(stub_->Tokenize(&context, request, &response).ok());
  EXPECT_EQ(std::string(response.token_ids().begin(), response.token_ids().end()), "True -7 0.5 me None");
}

TEST_F(GenerateDoorTest, WhatTheDoorRefusesIsCountedAndLoggedWithItsClient) {
  Serve({"a"});
  fakes::LogLines log;
  v1::GenerateRequest nothing;
  nothing.set_model("m");
  nothing.set_request_id("r1");
  ASSERT_FALSE(Generate(nothing).ok());
  EXPECT_THAT(log.lines(), Contains(MatchesRegex("request_id=r1 model=m door=grpc client=127.0.0.1:[0-9]+ "
                                                 "code=INVALID_ARGUMENT .* request refused")));
  EXPECT_THAT(metrics_.Serialize(),
              HasSubstr("swiftcache_gateway_refusals_total{model_name=\"m\",reason=\"invalid\"} 1"));
  ASSERT_EQ(Generate(Request("hi")), absl::OkStatus());
  EXPECT_THAT(log.lines(), Contains(MatchesRegex(".* door=grpc client=127.0.0.1:[0-9]+ code=OK .* request ended")));
}

TEST_F(GenerateDoorTest, AFullQueueSaysWhenToComeBack) {
  Serve({"a"});
  engines_["a"].SetScript([](FakeCall& call) { call.End(absl::ResourceExhaustedError("queue full")); });
  const absl::Status status = Generate(Request("x"));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryDelayOf(status).has_value());
}

TEST_F(GenerateDoorTest, AClientThatCancelsCancelsAtTheEngine) {
  Serve({"a"});
  absl::Notification cancelled;
  engines_["a"].SetScript([&](FakeCall& call) {
    call.SendText("x");
    call.WaitCancelled();
    cancelled.Notify();
  });
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, Request("x"));
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  cancelled.WaitForNotification();
  EXPECT_EQ(cut_, 0);
}

TEST_F(GenerateDoorTest, TheClientsDeadlineIsKept) {
  Serve({"a"});
  engines_["a"].SetScript(fakes::NeverAnswer);
  grpc::ClientContext context;
  SetTimeout(context, absl::Milliseconds(50));
  auto reader = stub_->Generate(&context, Request("x"));
  v1::GenerateResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(GenerateDoorTest, AClientThatDoesNotReadIsGivenUpOnceTheBoundIsReached) {
  Serve({"a"});
  std::atomic<int64_t> sent = 0;
  absl::Notification given_up;
  engines_["a"].SetScript([&](FakeCall& call) {
    const std::string piece(16 << 10, 'x');
    for (; sent < 4096; ++sent) call.SendText(piece);  // 64 MiB of text, and more as ids
    call.WaitCancelled();
    given_up.Notify();
  });
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, Request("x"));
  given_up.WaitForNotification();
  int64_t received = 0;
  v1::GenerateResponse response;
  while (reader->Read(&response)) ++received;
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("1048576"));
  EXPECT_LT(received, 1024);
  EXPECT_EQ(cut_, 1);
  const std::string counted = "swiftcache_gateway_requests_total{code=\"RESOURCE_EXHAUSTED\",model_name=\"m\"} 1";
  for (int i = 0; i < 2000 && !absl::StrContains(metrics_.Serialize(), counted); ++i) {  // the engine's end may be late
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_THAT(metrics_.Serialize(), HasSubstr(counted)) << "not as the client's own end";
}

class StalledReaderTest : public GenerateDoorTest {
 protected:
  StalledReaderTest() : GenerateDoorTest(absl::Milliseconds(200)) {
    stub_ = v1::GenerateService::NewStub(fakes::ConnectedChannel(server_->address()));  // whose window does not grow
  }
  // Reads when the server has cut the call.
  grpc::StatusCode FinishLate(grpc::ClientReader<v1::GenerateResponse>& reader) {
    for (int i = 0; i < 6000 && cut_ == 0; ++i) absl::SleepFor(absl::Milliseconds(10));
    EXPECT_EQ(cut_, 1);
    v1::GenerateResponse response;
    while (reader.Read(&response)) {
    }
    return reader.Finish().error_code();
  }
};

TEST_F(StalledReaderTest, AClientThatReadsNothingForTooLongIsCut) {
  Serve({"a"});
  absl::Notification cancelled;
  engines_["a"].SetScript([&](FakeCall& call) {
    call.SendText(std::string(100 << 10, 'x'));  // more than gRPC sends to who does not read
    call.WaitCancelled();
    cancelled.Notify();
  });
  grpc::ClientContext context;
  SetTimeout(context, absl::Minutes(2));
  auto reader = stub_->Generate(&context, Request("x"));
  cancelled.WaitForNotification();
  EXPECT_EQ(FinishLate(*reader), grpc::StatusCode::CANCELLED);
}

TEST_F(StalledReaderTest, SoIsOneThatDoesNotReadTheRestOfAnAnswerThatHasEnded) {
  Serve({"a"});
  engines_["a"].SetScript([&](FakeCall& call) {
    call.SendText(std::string(100 << 10, 'x'));
    call.SendFinish(fleet::FinishReason::kStop);
    call.End(absl::OkStatus());
  });
  grpc::ClientContext context;
  SetTimeout(context, absl::Minutes(2));
  auto reader = stub_->Generate(&context, Request("x"));
  EXPECT_EQ(FinishLate(*reader), grpc::StatusCode::CANCELLED);
}

TEST_F(GenerateDoorTest, ListsTokenizesAndDetokenizes) {
  Serve({"a"});
  grpc::ClientContext list_context, tokenize_context, detokenize_context;
  v1::ListModelsResponse models;
  ASSERT_TRUE(stub_->ListModels(&list_context, {}, &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).name(), "m");
  EXPECT_EQ(models.models(0).max_model_len_tokens(), 100);
  v1::TokenizeRequest tokenize;
  tokenize.set_model("m");
  tokenize.set_text("AB");
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub_->Tokenize(&tokenize_context, tokenize, &tokens).ok());
  EXPECT_THAT(tokens.token_ids(), ElementsAre('A', 'B'));
  v1::DetokenizeRequest detokenize;
  detokenize.set_model("m");
  for (int32_t id : {72, 105}) detokenize.add_token_ids(id);
  v1::DetokenizeResponse text;
  ASSERT_TRUE(stub_->Detokenize(&detokenize_context, detokenize, &text).ok());
  EXPECT_EQ(text.text(), "Hi");
}

}  // namespace
}  // namespace swiftcache::gateway
