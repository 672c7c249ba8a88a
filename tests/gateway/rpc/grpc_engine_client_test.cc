// SPDX-License-Identifier: Apache-2.0
#include "gateway/rpc/grpc_engine_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

class GrpcEngineClientTest : public ::testing::Test {
 protected:
  void Serve() {
    server_ = *RpcServer::Create({.listen = "127.0.0.1:0"}, {&service_});
    client_ =
        GrpcEngineClient::Create({.address = server_->address(), .card_hash = expected_hash_, .instance_id = "i1"});
    Connect();
  }
  // On a busy machine a first attempt may take more than the second that it is given.
  void Connect() {
    for (int tries = 0; tries < 400 && absl::IsUnavailable(client_->Ping(absl::Seconds(30))); ++tries) {
      absl::SleepFor(absl::Milliseconds(50));
    }
  }
  void SetCard(const v1::ModelCard& card) {
    service_.card_bytes = card.SerializeAsString();
    service_.card_hash = expected_hash_ = Sha256Hex(service_.card_bytes);
  }
  GrpcEngineClientTest() { service_.instance_id = "i1"; }
  ~GrpcEngineClientTest() override {
    if (server_ != nullptr) server_->Stop(absl::Now());
  }

  FakeEngineService service_;
  std::string expected_hash_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<GrpcEngineClient> client_;
};

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

TEST_F(GrpcEngineClientTest, ACardThatIsAnnouncedTooLargeIsNotRead) {
  service_.card_bytes = std::string(5000, 'x');
  service_.announced_bytes = (int64_t{128} << 20) + 1;
  Serve();
  const absl::Status status = client_->FetchModelCard(absl::Seconds(20)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1000 bytes have come and 134217729 are announced"));
}

// Of two bytes each, which become some hundred.
TEST(ParseModelCardTest, RefusesACardOfVeryManyTokensBeforeItIsParsed) {
  v1::ModelCard card;
  card.mutable_tokenizer()->set_kind(v1::TokenizerSpec::BYTE_LEVEL_BPE);
  for (int i = 0; i <= 1 << 21; ++i) card.mutable_tokenizer()->add_tokens("");
  const std::string bytes = card.SerializeAsString();
  const absl::Status status = ParseModelCard(bytes, Sha256Hex(bytes)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("more than 2097152 fields"));
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

TEST_F(GrpcEngineClientTest, AnotherProcessOfTheSameModelIsNoAnswer) {
  SetCard({});
  service_.instance_id = "i2";
  Serve();
  const absl::Status status = client_->Ping(absl::Seconds(30));
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("instance i2 answers, wanted i1"));
}

TEST_F(GrpcEngineClientTest, AServerWithoutModelCardsSaysNothingOfThisOne) {
  server_ = *RpcServer::Create({.listen = "127.0.0.1:0"}, {});
  client_ = GrpcEngineClient::Create({.address = server_->address(), .card_hash = "hash", .instance_id = "i1"});
  Connect();
  const absl::Status status = client_->FetchModelCard(absl::Seconds(20)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("UNIMPLEMENTED"));
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
