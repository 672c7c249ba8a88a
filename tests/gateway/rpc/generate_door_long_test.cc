// SPDX-License-Identifier: Apache-2.0
// Long texts at the door, with a relay whose tokenising takes as long as the test wants.
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "gateway/rpc/generate_door.h"
#include "gateway/rpc/generate_stream.h"
#include "tests/fakes/fake_relay.h"

namespace swiftcache::gateway {
namespace {

using Reader = std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>;

class GenerateDoorLongTest : public ::testing::Test {
 protected:
  GenerateDoorLongTest() : door_(relay_, {}, clock_) {
    relay_.check = [this](const relay::GenerateRequest& request) {
      if (std::get<std::string>(request.input).size() < kLongBytes) return absl::OkStatus();
      EXPECT_LT(request.arrived, absl::InfiniteFuture());
      ++tokenising_;
      done_.WaitForNotification();
      return absl::OutOfRangeError("too long");
    };
    relay_.on_generate = [](const std::shared_ptr<fakes::FakeCall>& call) { call->Say({"hi"}); };
    server_ = *RpcServer::Create({.listen = "127.0.0.1:0"}, {&door_});
    stub_ = v1::GenerateService::NewStub(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }
  ~GenerateDoorLongTest() override {
    if (!done_.HasBeenNotified()) done_.Notify();
    server_->Stop(absl::InfinitePast());
  }
  Reader Send(int64_t bytes) {
    v1::GenerateRequest request;
    request.set_model("m");
    request.set_prompt(std::string(static_cast<size_t>(bytes), 'x'));
    return Send(request);
  }
  Reader Send(const v1::GenerateRequest& request) {
    contexts_.emplace_back();
    SetTimeout(contexts_.back(), absl::Seconds(20));
    return stub_->Generate(&contexts_.back(), request);
  }
  static absl::Status End(const Reader& reader) {
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
    }
    return FromGrpc(reader->Finish());
  }

  static constexpr int64_t kLongBytes = 1 << 20;
  const RealClock clock_;
  fakes::FakeRelay relay_;
  std::atomic<int> tokenising_ = 0;
  absl::Notification done_;
  rpc::GenerateDoor door_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::GenerateService::Stub> stub_;
  std::deque<grpc::ClientContext> contexts_;
};

TEST_F(GenerateDoorLongTest, PromptsThatTakeLongToTokeniseHoldUpNoOtherCall) {
  std::vector<Reader> readers;
  for (int i = 0; i < 32; ++i) readers.push_back(Send(kLongBytes));  // more than gRPC has callback threads
  while (tokenising_ < 2) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(End(Send(1)), absl::OkStatus());
  done_.Notify();
  for (const Reader& reader : readers) EXPECT_EQ(End(reader), absl::OutOfRangeError("too long"));
  EXPECT_EQ(tokenising_, 32);
}

TEST_F(GenerateDoorLongTest, WhatNobodyWaitsForAnyMoreIsNotTokenised) {
  const auto stream = rpc::GenerateStream::Create({});
  stream->OnCancel();  // while it waits for a thread
  stream->Begin(relay_, relay::GenerateRequest{.request_id = "r"});
  EXPECT_EQ(relay_.calls(), 0);
  ASSERT_EQ(relay_.refused().size(), 1);
  EXPECT_TRUE(absl::IsCancelled(relay_.refused()[0].second));
  stream->OnDone();
}

TEST_F(GenerateDoorLongTest, SizesAreCheckedBeforeAnythingIsCopied) {
  std::vector<relay::RequestSizes> seen;
  relay_.check_sizes = [&seen](const relay::RequestSizes& sizes) {
    seen.push_back(sizes);
    return absl::OutOfRangeError("too much");
  };
  v1::GenerateRequest request;
  request.set_model("m");
  for (int i = 0; i < 5; ++i) request.mutable_token_ids()->add_ids(i);
  for (int i = 0; i < 4; ++i) request.mutable_sampling()->add_stop("x");
  for (int i = 0; i < 3; ++i) request.mutable_sampling()->add_stop_token_ids(i);
  EXPECT_EQ(End(Send(request)), absl::OutOfRangeError("too much"));
  v1::Chat& chat = *request.mutable_chat();
  for (int i = 0; i < 2; ++i) chat.add_messages();
  chat.mutable_chat_template_kwargs()->insert({"a", {}});
  EXPECT_EQ(End(Send(request)), absl::OutOfRangeError("too much"));
  v1::TokenizeRequest tokenize;
  *tokenize.mutable_chat() = chat;
  v1::TokenizeResponse ids;
  grpc::ClientContext context;
  EXPECT_EQ(FromGrpc(stub_->Tokenize(&context, tokenize, &ids)), absl::OutOfRangeError("too much"));
  ASSERT_EQ(seen.size(), 3);
  EXPECT_EQ(seen[0].token_ids, 5);
  EXPECT_EQ(seen[0].stop_strings, 4);
  EXPECT_EQ(seen[0].stop_token_ids, 3);
  EXPECT_EQ(seen[1].messages, 2);
  EXPECT_EQ(seen[1].template_variables, 1);
  EXPECT_EQ(seen[2].messages, 2);
  EXPECT_EQ(relay_.calls(), 0);
  ASSERT_EQ(relay_.refused().size(), 2);  // Tokenize is not counted
  EXPECT_EQ(relay_.refused()[0].second, absl::OutOfRangeError("too much"));
}

}  // namespace
}  // namespace swiftcache::gateway
