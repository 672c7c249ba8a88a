// SPDX-License-Identifier: Apache-2.0
// Clients of Generate and GenerateMany that leave unread what they asked for.
#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "engine/rpc/engine_service.h"
#include "tests/engine/rpc/cards.h"
#include "tests/engine/rpc/requests.h"
#include "tests/fakes/connected_channel.h"
#include "tests/fakes/fake_engine.h"

namespace swiftcache::engine::rpc {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBound = 1 << 20;

exec::TokenEvent WithLogprobs(int tokens) {
  exec::TokenEvent event;
  event.token_ids.assign(tokens, 3);
  event.logprobs.assign(tokens, {.token_id = 3, .logprob = -1, .top = std::vector<std::pair<int32_t, float>>(20)});
  return event;
}

// Reads what is left.
grpc::Status EndOf(grpc::ClientReader<v1::EngineGenerateResponse>& reader) {
  v1::EngineGenerateResponse response;
  while (reader.Read(&response)) {
  }
  return reader.Finish();
}
grpc::Status EndOf(grpc::ClientReaderWriter<v1::GenerateManyRequest, v1::GenerateManyResponse>& stream) {
  v1::GenerateManyResponse response;
  while (stream.Read(&response)) {
  }
  return stream.Finish();
}

class UnreadTest : public ::testing::Test {
 protected:
  ~UnreadTest() override { server_->Stop(absl::InfinitePast()); }

  void Serve(absl::Duration stall_timeout = absl::InfiniteDuration()) {
    const WireLimits limits{
        .max_unread_bytes = kBound, .max_unread_stream_bytes = kBound, .stall_timeout = stall_timeout};
    door_ = std::make_unique<EngineDoor>(limits, *SerializeModelCard(SomeCard()), "i1", [] { return uint64_t{7}; });
    door_->Open(engine_);
    server_ = *RpcServer::Create({.listen = "127.0.0.1:0"}, {door_.get()});
    stub_ = v1::EngineService::NewStub(fakes::ConnectedChannel(server_->address()));
    SetTimeout(context_, absl::Minutes(2));
  }
  auto Generate() { return stub_->Generate(&context_, PromptNamed("r1")); }
  // Of r1 and r2.
  auto GenerateMany() {
    auto stream = stub_->GenerateMany(&context_);
    for (const int id : {1, 2}) {
      v1::GenerateManyRequest command;
      command.set_generation_id(id);
      *command.mutable_begin()->mutable_request() = PromptNamed(absl::StrCat("r", id));
      EXPECT_TRUE(stream->Write(command));
      EXPECT_NE(engine_.WaitForRequest(absl::StrCat("r", id)), nullptr);
    }
    return stream;
  }
  // Until r1 is cancelled. Returns the bytes of memory of what it was told.
  int64_t TellTooMuch() {
    const exec::TokenEvent event = WithLogprobs(8);
    FakeEngine::Live* live = engine_.WaitForRequest("r1");
    int64_t told = 0;
    while (engine_.is_live("r1") && told < 64 * kBound) {
      live->sink->OnTokens(event);
      told += MemoryOf(event);
      if (engine_.is_live("r1")) live->sink->OnStepEnd();
    }
    return told;
  }
  // More than gRPC sends to who does not read.
  void TellMuch() {
    FakeEngine::Live* live = engine_.WaitForRequest("r1");
    live->sink->OnTokens({.token_ids = std::vector<int32_t>(100'000, 3)});
    live->sink->OnStepEnd();
  }

  FakeEngine engine_;
  std::unique_ptr<EngineDoor> door_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::EngineService::Stub> stub_;
  grpc::ClientContext context_;
};

// Beside the bound there is what gRPC takes, and a message on its way: as much as waited when it was taken.
TEST_F(UnreadTest, OfACallOfGenerateIsBoundedAndItsRequestCancelled) {
  Serve();
  auto reader = Generate();
  ASSERT_NE(engine_.WaitForRequest("r1"), nullptr);
  EXPECT_LT(TellTooMuch(), 8 * kBound);
  EXPECT_TRUE(engine_.WaitForCancel("r1"));
  const absl::Status status = FromGrpc(EndOf(*reader));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("more than 1048576 bytes of the answer unread"));
  EXPECT_EQ(RetryDelayOf(status), absl::Seconds(1));
}

TEST_F(UnreadTest, OfAStreamOfGenerationsIsBoundedAndAllOfThemCancelled) {
  Serve();
  auto stream = GenerateMany();
  EXPECT_LT(TellTooMuch(), 8 * kBound);
  EXPECT_TRUE(engine_.WaitForCancel("r1"));
  EXPECT_TRUE(engine_.WaitForCancel("r2"));
  const grpc::Status status = EndOf(*stream);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("more than 1048576 bytes unread"));
}

TEST_F(UnreadTest, WhatIsReadDoesNotCount) {
  Serve();
  auto stream = GenerateMany();
  FakeEngine::Live* live = engine_.WaitForRequest("r1");
  const exec::TokenEvent event = WithLogprobs(8);
  v1::GenerateManyResponse response;
  for (int64_t told = 0; told < 4 * kBound; told += MemoryOf(event)) {
    live->sink->OnTokens(event);
    live->sink->OnStepEnd();
    ASSERT_TRUE(stream->Read(&response));
  }
  EXPECT_EQ(engine_.live(), 2u);
}

TEST_F(UnreadTest, AClientOfGenerateThatReadsNothingForTooLongIsCut) {
  Serve(absl::Milliseconds(200));
  auto reader = Generate();
  TellMuch();
  EXPECT_TRUE(engine_.WaitForCancel("r1"));
  EXPECT_EQ(EndOf(*reader).error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(UnreadTest, SoIsOneOfAnAnswerThatHasEnded) {
  Serve(absl::Milliseconds(200));
  auto reader = Generate();
  TellMuch();
  engine_.End("r1", absl::OkStatus());
  const absl::Time begun = absl::Now();
  server_->Stop(begun + absl::Minutes(2));  // waits for the call
  EXPECT_LT(absl::Now() - begun, absl::Minutes(1));
  EXPECT_FALSE(EndOf(*reader).ok());
}

TEST_F(UnreadTest, AStreamOfGenerationsThatNobodyReadsForTooLongIsCut) {
  Serve(absl::Milliseconds(200));
  auto stream = GenerateMany();
  TellMuch();
  EXPECT_TRUE(engine_.WaitForCancel("r1"));
  EXPECT_TRUE(engine_.WaitForCancel("r2"));
  EXPECT_EQ(EndOf(*stream).error_code(), grpc::StatusCode::CANCELLED);
}

TEST(MemoryOfTest, IsAboutWhatAMessageTakes) {
  v1::EngineGenerateResponse response;
  int64_t counted = 0;
  for (int i = 0; i < 1000; ++i) {
    const exec::TokenEvent event = WithLogprobs(1);
    Append(event, response);
    counted += MemoryOf(event);
  }
  EXPECT_EQ(MemoryOf(response), counted);
  const auto used = static_cast<double>(response.SpaceUsedLong());
  EXPECT_GT(counted, used);
  EXPECT_LT(counted, 1.5 * used);
}

}  // namespace
}  // namespace swiftcache::engine::rpc
