// SPDX-License-Identifier: Apache-2.0
#include "gateway/rpc/grpc_engine_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/base/sha256.h"
#include "common/rpc/server.h"
#include "gateway/rpc/card_convert.h"
#include "tests/fakes/fake_engine_service.h"

namespace swiftcache::gateway::rpc {
namespace {

using fakes::FakeEngineService;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Recorder final : public fleet::EngineObserver {
 public:
  void OnEvent(fleet::EngineEvent event) override {
    absl::MutexLock lock(&mutex_);
    ids_.insert(ids_.end(), event.token_ids.begin(), event.token_ids.end());
    finish_ = event.finish;
    ++events_;
  }
  void OnDone(absl::Status status) override {
    absl::MutexLock lock(&mutex_);
    done_ = std::move(status);
  }
  absl::Status Wait() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](Recorder* r) { return r->done_.has_value(); }, this));
    return *done_;
  }
  void WaitForAnEvent() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](Recorder* r) { return r->events_ > 0; }, this));
  }
  std::vector<int32_t> ids() {
    absl::MutexLock lock(&mutex_);
    return ids_;
  }
  std::optional<fleet::FinishReason> finish() {
    absl::MutexLock lock(&mutex_);
    return finish_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<int32_t> ids_;
  std::optional<fleet::FinishReason> finish_;
  int events_ = 0;
  std::optional<absl::Status> done_;
};

class GrpcEngineClientTest : public ::testing::Test {
 protected:
  void Serve() {
    server_ = *RpcServer::Create({.listen = "127.0.0.1:0"}, {&service_});
    client_ = GrpcEngineClient::Create({.address = server_->address(), .card_hash = expected_hash_});
  }
  void SetCard(const v1::ModelCard& card) {
    service_.card_bytes = card.SerializeAsString();
    service_.card_hash = expected_hash_ = Sha256Hex(service_.card_bytes);
  }
  ~GrpcEngineClientTest() override {
    if (server_ != nullptr) server_->Stop(absl::Now());
  }

  FakeEngineService service_;
  std::string expected_hash_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<GrpcEngineClient> client_;
  std::shared_ptr<Recorder> recorder_ = std::make_shared<Recorder>();
};

TEST_F(GrpcEngineClientTest, StreamsTokensAndPassesRequestAndTrace) {
  v1::EngineGenerateRequest seen;
  std::string trace;
  service_.generate = [&](grpc::ServerContext& context, const v1::EngineGenerateRequest& request, auto& writer) {
    seen = request;
    trace = ClientMetadata(context, "traceparent");
    FakeEngineService::SendTokens(writer, 3);
    return grpc::Status::OK;
  };
  Serve();
  fleet::EngineRequest request;
  request.request_id = "r1";
  request.traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  request.token_ids = {5, 6};
  request.sampling.temperature = 0.5F;
  request.sampling.stop = {"not for engines"};
  auto call = client_->Generate(request, recorder_);
  EXPECT_EQ(recorder_->Wait(), absl::OkStatus());
  EXPECT_THAT(recorder_->ids(), ElementsAre(0, 1, 2));
  EXPECT_EQ(recorder_->finish(), fleet::FinishReason::kLength);
  EXPECT_EQ(seen.request_id(), "r1");
  EXPECT_THAT(seen.token_ids(), ElementsAre(5, 6));
  EXPECT_FLOAT_EQ(seen.sampling().temperature(), 0.5F);
  EXPECT_FALSE(seen.sampling().has_top_p());
  EXPECT_EQ(seen.sampling().stop_size(), 0);
  EXPECT_EQ(trace, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
}

TEST_F(GrpcEngineClientTest, ATraceThatIsNoTraceparentIsNotSent) {
  std::string trace = "none came";
  service_.generate = [&](grpc::ServerContext& context, const v1::EngineGenerateRequest&, auto& writer) {
    trace = ClientMetadata(context, "traceparent");
    FakeEngineService::SendTokens(writer, 1);
    return grpc::Status::OK;
  };
  Serve();
  fleet::EngineRequest request;
  request.traceparent = "00-\t\x80";
  auto call = client_->Generate(request, recorder_);
  EXPECT_EQ(recorder_->Wait(), absl::OkStatus());
  EXPECT_EQ(trace, "");
}

TEST_F(GrpcEngineClientTest, CancelReachesTheServerAndMayComeAgainLater) {
  service_.generate = [&](grpc::ServerContext& context, const v1::EngineGenerateRequest&, auto& writer) {
    return service_.WaitCancelled(context, writer);
  };
  Serve();
  auto call = client_->Generate({}, recorder_);
  recorder_->WaitForAnEvent();
  call->Cancel();
  EXPECT_EQ(recorder_->Wait().code(), absl::StatusCode::kCancelled);
  service_.cancelled.WaitForNotification();
  call->Cancel();
}

TEST_F(GrpcEngineClientTest, TheDeadlineEndsACall) {
  service_.generate = [&](grpc::ServerContext& context, const v1::EngineGenerateRequest&, auto& writer) {
    return service_.WaitCancelled(context, writer);
  };
  Serve();
  fleet::EngineRequest request;
  request.deadline = absl::Now() + absl::Milliseconds(50);
  auto call = client_->Generate(request, recorder_);
  EXPECT_EQ(recorder_->Wait().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(GrpcEngineClientTest, AnEngineThatIsNotThereIsUnavailableAtOnce) {
  service_.generate = [](auto&, auto&, auto&) { return grpc::Status::OK; };
  Serve();
  const std::string address = server_->address();
  server_->Stop(absl::Now());
  server_.reset();
  client_ = GrpcEngineClient::Create({.address = address, .card_hash = ""});
  auto call = client_->Generate({}, recorder_);
  EXPECT_EQ(recorder_->Wait().code(), absl::StatusCode::kUnavailable);
}

struct HeldUp final : fleet::EngineObserver {
  void OnEvent(fleet::EngineEvent) override {}
  void OnDone(absl::Status) override {
    go_on.WaitForNotification();
    done.Notify();
  }
  absl::Notification go_on, done;
};

// Then its connection ends on one of gRPC's callback threads, and nothing else in this process uses these.
TEST_F(GrpcEngineClientTest, ACallMayOutliveAllElse) {
  for (int round = 0; round < 50; ++round) {
    const auto observer = std::make_shared<HeldUp>();
    GrpcEngineClient::Create({.address = "127.0.0.1:1", .card_hash = ""})->Generate({}, observer);
    observer->go_on.Notify();
    observer->done.WaitForNotification();
  }
}

TEST_F(GrpcEngineClientTest, FetchesACardInChunks) {
  v1::ModelCard card;
  card.set_vocab_size(7);
  card.set_chat_template(std::string(5000, 't'));
  card.mutable_tokenizer()->set_kind(v1::TokenizerSpec::SENTENCEPIECE_BPE);
  card.mutable_tokenizer()->add_tokens("a\xFF");
  card.mutable_tokenizer()->add_token_types(v1::TokenizerSpec::BYTE);
  card.mutable_tokenizer()->add_merges(0);
  card.mutable_tokenizer()->add_merges(0);
  card.mutable_tokenizer()->add_pre_tokenizer()->set_split_regex("x");
  card.mutable_tokenizer()->set_bos_id(0);
  SetCard(card);
  Serve();
  const auto fetched = client_->FetchModelCard(absl::Seconds(20));
  ASSERT_EQ(fetched.status(), absl::OkStatus());
  EXPECT_EQ(fetched->vocab_size, 7);
  EXPECT_EQ(fetched->chat_template.size(), 5000);
  EXPECT_EQ(fetched->tokenizer.kind, text::TokenizerKind::kSentencePieceBpe);
  EXPECT_THAT(fetched->tokenizer.tokens, ElementsAre("a\xFF"));
  EXPECT_THAT(fetched->tokenizer.token_types, ElementsAre(text::TokenType::kByte));
  EXPECT_THAT(fetched->tokenizer.merges, ElementsAre(std::pair<int32_t, int32_t>(0, 0)));
  EXPECT_EQ(fetched->tokenizer.pre_tokenizer.at(0).regex, "x");
  EXPECT_EQ(fetched->tokenizer.bos_id, 0);
  EXPECT_FALSE(fetched->tokenizer.eos_id.has_value());
}

TEST_F(GrpcEngineClientTest, ACardWithAnotherHashIsDataLoss) {
  v1::ModelCard card;
  card.mutable_tokenizer()->set_kind(v1::TokenizerSpec::BYTE_LEVEL_BPE);
  SetCard(card);
  service_.card_bytes += "x";
  Serve();
  EXPECT_EQ(client_->FetchModelCard(absl::Seconds(20)).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(GrpcEngineClientTest, ACardLargerThanAnnouncedIsDataLoss) {
  service_.card_bytes = std::string(5000, 'x');
  service_.announced_bytes = 1500;
  Serve();
  const absl::Status status = client_->FetchModelCard(absl::Seconds(20)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1500"));
}

TEST(ParseModelCardTest, RefusesWhatIsNotAModelCard) {
  for (const std::string& bytes :
       {std::string("\xFF\xFF\xFF"), std::string(), std::string("\x0A\x03\x18\x01\x01", 5)}) {
    EXPECT_EQ(ParseModelCard(bytes, Sha256Hex(bytes)).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(ParseModelCardTest, RefusesMergesThatAreNotPairs) {
  v1::ModelCard card;
  card.mutable_tokenizer()->set_kind(v1::TokenizerSpec::BYTE_LEVEL_BPE);
  card.mutable_tokenizer()->add_merges(1);
  const std::string bytes = card.SerializeAsString();
  const absl::Status status = ParseModelCard(bytes, Sha256Hex(bytes)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("merges"));
}

TEST_F(GrpcEngineClientTest, AnEngineOfTheSameCardAnswersAPing) {
  SetCard({});
  Serve();
  EXPECT_EQ(client_->Ping(absl::Seconds(30)), absl::OkStatus());
}

TEST_F(GrpcEngineClientTest, AnotherModelAtTheAddressIsNoAnswer) {
  v1::ModelCard card;
  card.set_chat_template("x");
  SetCard(card);
  expected_hash_ = "another";
  Serve();
  EXPECT_EQ(client_->Ping(absl::Seconds(30)).code(), absl::StatusCode::kNotFound);
}

TEST_F(GrpcEngineClientTest, NobodyAnswersAPingWhereNobodyListens) {
  SetCard({});
  Serve();
  server_->Stop(absl::Now());
  const absl::Status status = client_->Ping(absl::Milliseconds(200));
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
}

}  // namespace
}  // namespace swiftcache::gateway::rpc
