// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/engine_service.h"

#include <glog/logging.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "tests/engine/rpc/cards.h"
#include "tests/engine/rpc/requests.h"
#include "tests/fakes/connected_channel.h"
#include "tests/fakes/fake_engine.h"
#include "tests/fakes/raw_rpc_client.h"

namespace swiftcache::engine::rpc {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kChunkBytes = 1 << 20;  // of a model card, as engine.proto says

exec::TokenEvent Tokens(int32_t index, std::vector<int32_t> ids) {
  exec::TokenEvent event;
  event.index = index;
  event.token_ids = std::move(ids);
  return event;
}

// What is logged while it lives.
class LogLines final : public google::LogSink {
 public:
  LogLines() { google::AddLogSink(this); }
  ~LogLines() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity, const char*, const char*, int, const struct ::tm*, const char* message,
            size_t length) override {
    absl::MutexLock lock(&mutex_);
    lines_.emplace_back(message, length);
  }
  std::vector<std::string> Take() {
    absl::MutexLock lock(&mutex_);
    return std::move(lines_);
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

class EngineDoorTest : public ::testing::Test {
 protected:
  void SetUp() override { Serve(*SerializeModelCard(SomeCard())); }
  void TearDown() override {
    if (server_ != nullptr) server_->Stop(absl::Now());
  }

  void Serve(SerializedCard card, absl::Duration stall_timeout = kStallTimeout) {
    card_ = card;
    const WireLimits limits{.model_card_hash = card.hash, .stall_timeout = stall_timeout};
    door_ = std::make_unique<EngineDoor>(limits, std::move(card), "i1", [] { return uint64_t{7}; });
    auto server = RpcServer::Create({.listen = "127.0.0.1:0"}, {door_.get()});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::EngineService::NewStub(fakes::ConnectedChannel(server_->address()));
  }
  // Of some 3.6 MB.
  void ServeBigCard(absl::Duration stall_timeout = kStallTimeout) {
    TearDown();
    loader::ModelCard big = SomeCard();
    big.tokenizer.tokens.assign(300'000, "0123456789");
    Serve(*SerializeModelCard(big), stall_timeout);
  }
  // A client's request, which it cancels once the engine has it.
  void BeginAndCancel() {
    door_->Open(engine_);
    grpc::ClientContext context;
    auto reader = stub_->Generate(&context, PromptNamed("r1"));
    ASSERT_NE(engine_.WaitForRequest("r1"), nullptr);
    context.TryCancel();
    EXPECT_TRUE(engine_.WaitForCancel("r1"));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  // The status of a call that is refused.
  absl::Status StatusOf(const v1::EngineGenerateRequest& request) {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(30));
    auto reader = stub_->Generate(&context, request);
    v1::EngineGenerateResponse response;
    EXPECT_FALSE(reader->Read(&response));
    return FromGrpc(reader->Finish());
  }
  absl::StatusOr<std::string> FetchCard(const std::string& known_hash, int* messages) {
    grpc::ClientContext context;
    v1::GetModelCardRequest request;
    request.set_known_hash(known_hash);
    auto reader = stub_->GetModelCard(&context, request);
    v1::GetModelCardResponse response;
    std::string bytes;
    for (*messages = 0; reader->Read(&response); ++*messages) {
      EXPECT_EQ(response.hash(), card_.hash);
      EXPECT_EQ(response.instance_id(), "i1");
      EXPECT_EQ(response.total_bytes(), static_cast<int64_t>(card_.bytes.size()));
      EXPECT_LE(response.data().size(), kChunkBytes);
      bytes += response.data();
    }
    const absl::Status status = FromGrpc(reader->Finish());
    if (!status.ok()) return status;
    return bytes;
  }

  FakeEngine engine_;
  SerializedCard card_;
  std::unique_ptr<EngineDoor> door_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::EngineService::Stub> stub_;
};

TEST_F(EngineDoorTest, UnavailableUntilTheEngineIsThere) {
  EXPECT_EQ(StatusOf(PromptNamed("r1")).code(), absl::StatusCode::kUnavailable);
  int messages = 0;
  EXPECT_TRUE(FetchCard("", &messages).ok());
}

TEST_F(EngineDoorTest, EveryMethodRefusesARequestOfTooManyFields) {
  const auto* file = v1::EngineGenerateRequest::descriptor()->file();
  fakes::ExpectEveryMethodRefusesTooManyFields(server_->address(), *file->FindServiceByName("EngineService"));
}

TEST_F(EngineDoorTest, WhatIsNoMessageEndsTheStreamOfGenerations) {
  for (const char* bytes : {"\x0a\x7f", "\x12\x04\x12\x02\xff\xfe"}) {  // cut, and a traceparent that is not UTF-8
    const grpc::Status status =
        fakes::SendBytes(server_->address(), "/swiftcache.v1.EngineService/GenerateMany", bytes);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("cannot be parsed"));
  }
}

TEST_F(EngineDoorTest, ARefusalIsOneLineWithTheRequestsId) {
  LogLines lines;
  EXPECT_EQ(StatusOf(PromptNamed("early")).code(), absl::StatusCode::kUnavailable);
  door_->Open(engine_);
  v1::EngineGenerateRequest salty = PromptNamed("two\nlines");
  salty.set_cache_salt(std::string(1025, 's'));
  EXPECT_EQ(StatusOf(salty).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(StatusOf(PromptNamed(std::string(100'000, 'x'))).code(), absl::StatusCode::kInvalidArgument);
  const std::vector<std::string> taken = lines.Take();
  ASSERT_EQ(taken.size(), 3u);
  EXPECT_THAT(taken[0], AllOf(HasSubstr("request_id=early "), HasSubstr("refused UNAVAILABLE")));
  EXPECT_THAT(taken[1], AllOf(HasSubstr("request_id=two\\nlines "), HasSubstr("refused INVALID_ARGUMENT: cache_salt")));
  EXPECT_LT(taken[2].size(), 1000u);
}

TEST_F(EngineDoorTest, StreamsEventsAndEndsWithTheEnginesStatus) {
  door_->Open(engine_);
  grpc::ClientContext context;
  context.AddMetadata("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  auto reader = stub_->Generate(&context, PromptNamed("r1"));
  FakeEngine::Live* live = engine_.WaitForRequest("r1");
  ASSERT_NE(live, nullptr);
  EXPECT_EQ(live->request.traceparent, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  live->sink->OnTokens(Tokens(0, {3}));
  v1::EngineGenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_THAT(response.token_ids(), ElementsAre(3));
  EXPECT_FALSE(response.has_finish_reason());
  exec::TokenEvent last = Tokens(0, {4});
  last.finish = exec::FinishReason::kStop;
  last.usage.emplace().prompt_tokens = 1;
  live->sink->OnTokens(last);
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.finish_reason(), v1::STOP);
  EXPECT_EQ(response.usage().prompt_tokens(), 1);
  engine_.End("r1", absl::OkStatus());
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(EngineDoorTest, ASlowReaderGetsEveryTokenInOrderPerIndex) {
  door_->Open(engine_);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, PromptNamed("r1"));
  FakeEngine::Live* live = engine_.WaitForRequest("r1");
  ASSERT_NE(live, nullptr);
  constexpr int kTokens = 20'000;
  for (int i = 0; i < kTokens; ++i) live->sink->OnTokens(Tokens(i % 3, {i}));
  engine_.End("r1", absl::OkStatus());
  std::map<int32_t, std::vector<int32_t>> got;
  v1::EngineGenerateResponse response;
  int messages = 0;
  for (; reader->Read(&response); ++messages) {
    auto& of_index = got[response.index()];
    of_index.insert(of_index.end(), response.token_ids().begin(), response.token_ids().end());
  }
  EXPECT_TRUE(reader->Finish().ok());
  for (int32_t index = 0; index < 3; ++index) {
    std::vector<int32_t> wanted;
    for (int i = index; i < kTokens; i += 3) wanted.push_back(i);
    EXPECT_EQ(got[index], wanted) << "index " << index;
  }
  EXPECT_LT(messages, kTokens);
}

TEST_F(EngineDoorTest, AnErrorAfterTokensReachesTheClientBehindThem) {
  door_->Open(engine_);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, PromptNamed("r1"));
  FakeEngine::Live* live = engine_.WaitForRequest("r1");
  ASSERT_NE(live, nullptr);
  live->sink->OnTokens(Tokens(0, {3}));
  engine_.End("r1", absl::InternalError("the device fell over"));
  v1::EngineGenerateResponse response;
  EXPECT_TRUE(reader->Read(&response));
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::INTERNAL);
}

TEST_F(EngineDoorTest, AClientThatCancelsCancelsTheRequestAtOnce) {
  ASSERT_NO_FATAL_FAILURE(BeginAndCancel());
  EXPECT_EQ(engine_.live(), 0u);
}

TEST_F(EngineDoorTest, ACancelThatComesTooLateLeavesTheNextRequestOfItsIdAlone) {
  engine_.before_cancel = [this] {
    engine_.End("r1", absl::OkStatus());
    EXPECT_EQ(engine_.SubmitOf("r1"), absl::OkStatus());
  };
  ASSERT_NO_FATAL_FAILURE(BeginAndCancel());
  EXPECT_EQ(engine_.live(), 1u);
}

TEST_F(EngineDoorTest, AClientWhoseConnectionIsGoneCancelsItsRequest) {
  door_->Open(engine_);
  {
    auto stub = v1::EngineService::NewStub(fakes::ConnectedChannel(server_->address()));
    grpc::ClientContext context;
    auto reader = stub->Generate(&context, PromptNamed("r1"));
    ASSERT_NE(engine_.WaitForRequest("r1"), nullptr);
  }  // reader, context and channel are gone without a word
  EXPECT_TRUE(engine_.WaitForCancel("r1"));
}

TEST_F(EngineDoorTest, ADeadlineCancelsTheRequest) {
  door_->Open(engine_);
  int messages = 0;
  ASSERT_TRUE(FetchCard("", &messages).ok());  // so that nobody has to connect
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(2));  // by then it is with the engine
  auto reader = stub_->Generate(&context, PromptNamed("r1"));
  v1::EngineGenerateResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(engine_.WaitForCancel("r1"));
}

TEST_F(EngineDoorTest, ARequestForAnotherCardGoesToNoEngine) {
  door_->Open(engine_);
  v1::EngineGenerateRequest request = PromptNamed("r1");
  request.set_model_card_hash("beef");
  EXPECT_EQ(StatusOf(request).code(), absl::StatusCode::kUnavailable);
  request.set_model_card_hash(card_.hash);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  EXPECT_NE(engine_.WaitForRequest("r1"), nullptr);
  context.TryCancel();
  EXPECT_TRUE(engine_.WaitForCancel("r1"));
}

TEST_F(EngineDoorTest, ARefusedRequestCancelsNothing) {
  door_->Open(engine_);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, PromptNamed("r1"));
  ASSERT_NE(engine_.WaitForRequest("r1"), nullptr);
  EXPECT_EQ(StatusOf(PromptNamed("r1")).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(engine_.live(), 1u);
  engine_.End("r1", absl::OkStatus());
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(EngineDoorTest, AFullQueueSaysWhenToRetry) {
  door_->Open(engine_);
  engine_.refuse_with(absl::ResourceExhaustedError("queue full"));
  const absl::Status status = StatusOf(PromptNamed("r1"));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryDelayOf(status), absl::Seconds(1));
}

TEST_F(EngineDoorTest, BadRequestsAreRefusedBeforeTheEngine) {
  door_->Open(engine_);
  v1::EngineGenerateRequest request = PromptNamed("r1");
  request.set_cache_salt(std::string(1025, 's'));
  const absl::Status status = StatusOf(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cache_salt has 1025 bytes"));
  EXPECT_EQ(engine_.live(), 0u);
  EXPECT_THAT(engine_.refusals(), ElementsAre(absl::StatusCode::kInvalidArgument)) << "it counts what it never saw";
}

TEST_F(EngineDoorTest, TheCardComesInChunksAndOnlyWhenItIsNews) {
  ServeBigCard();
  int messages = 0;
  absl::StatusOr<std::string> bytes = FetchCard("", &messages);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, card_.bytes);
  EXPECT_EQ(messages, static_cast<int>((card_.bytes.size() + kChunkBytes - 1) / kChunkBytes));
  EXPECT_GT(messages, 2);
  bytes = FetchCard("another", &messages);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(*bytes, card_.bytes);
  bytes = FetchCard(card_.hash, &messages);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(*bytes, "");
  EXPECT_EQ(messages, 1);
}

TEST_F(EngineDoorTest, CallsForTheCardThatNobodyReadsAreBoundedAndOthersComeWhenTheyHaveEnded) {
  ServeBigCard();
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GetModelCardResponse>> reader;
  };
  std::vector<std::unique_ptr<Call>> calls;
  v1::GetModelCardResponse chunk;
  for (int i = 0; i < EngineDoor::kMaxCardCalls; ++i) {
    Call& call = *calls.emplace_back(std::make_unique<Call>());
    call.reader = stub_->GetModelCard(&call.context, v1::GetModelCardRequest());
    ASSERT_TRUE(call.reader->Read(&chunk));
  }
  int messages = 0;
  EXPECT_EQ(FetchCard("", &messages).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(FetchCard(card_.hash, &messages).ok()) << "whether the engine lives can be asked all the same";
  EXPECT_EQ(messages, 1);
  for (auto& call : calls) {
    call->context.TryCancel();
    EXPECT_EQ(call->reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  absl::StatusOr<std::string> bytes;
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  do bytes = FetchCard("", &messages);  // the engine hears of the end of a call when it does
  while (!bytes.ok() && absl::Now() < deadline);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, card_.bytes);
}

TEST_F(EngineDoorTest, ACallForTheCardThatNobodyReadsIsCut) {
  ServeBigCard(/*stall_timeout=*/absl::Seconds(1));
  grpc::StatusCode code = grpc::StatusCode::OK;
  for (int seconds = 2; code == grpc::StatusCode::OK && seconds <= 32; seconds *= 2) {  // on a busy machine it is late
    grpc::ClientContext context;
    const auto reader = stub_->GetModelCard(&context, v1::GetModelCardRequest());
    v1::GetModelCardResponse chunk;
    ASSERT_TRUE(reader->Read(&chunk));
    absl::SleepFor(absl::Seconds(seconds));
    while (reader->Read(&chunk)) {
    }
    code = reader->Finish().error_code();
  }
  EXPECT_EQ(code, grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace swiftcache::engine::rpc
