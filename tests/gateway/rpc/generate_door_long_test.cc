// SPDX-License-Identifier: Apache-2.0
// Long texts at the door, with a relay whose tokenising takes as long as the test wants.
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <memory>
#include <stdexcept>
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
  explicit GenerateDoorLongTest(const rpc::GenerateDoor::Options& options = {}) : door_(relay_, options, clock_) {
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

class GenerateDoorOneThreadTest : public GenerateDoorLongTest {
 protected:
  GenerateDoorOneThreadTest()
      : GenerateDoorLongTest({.side_threads = {.threads = 1, .max_waiting_bytes = 4 * kLongBytes}}) {}
  static v1::DetokenizeRequest LongDetokenize(int ids) {
    v1::DetokenizeRequest request;
    request.set_model("m");
    for (int i = 0; i < ids; ++i) request.add_token_ids(1);
    return request;
  }
};

TEST_F(GenerateDoorOneThreadTest, WhereTooMuchWaitsForAThreadALongCallIsRefusedAndAShortOneIsServed) {
  const Reader first = Send(kLongBytes);
  while (tokenising_ < 1) absl::SleepFor(absl::Milliseconds(1));
  const absl::Status status = End(Send(4 * kLongBytes));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryDelayOf(status).has_value());
  ASSERT_EQ(relay_.refused().size(), 1);
  EXPECT_EQ(relay_.refused()[0].first.model, "m");
  EXPECT_TRUE(absl::IsResourceExhausted(relay_.refused()[0].second));
  v1::DetokenizeResponse text;
  grpc::ClientContext context;
  const absl::Status detokenize = FromGrpc(stub_->Detokenize(&context, LongDetokenize(kLongBytes), &text));
  EXPECT_EQ(detokenize.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryDelayOf(detokenize).has_value());
  EXPECT_EQ(relay_.detokenized, 0);
  EXPECT_EQ(End(Send(1)), absl::OkStatus());
  done_.Notify();
  EXPECT_EQ(End(first), absl::OutOfRangeError("too long"));
  EXPECT_EQ(tokenising_, 1);
}

TEST_F(GenerateDoorOneThreadTest, WhatIsCancelledWhileItWaitsIsNotTurnedIntoText) {
  relay_.on_generate = nullptr;
  const Reader first = Send(kLongBytes);
  while (tokenising_ < 1) absl::SleepFor(absl::Milliseconds(1));
  grpc::ClientContext context, list_context;
  const v1::DetokenizeRequest request = LongDetokenize(40'000);
  v1::DetokenizeResponse text;
  absl::Notification ended;
  grpc::Status status;
  stub_->async()->Detokenize(&context, &request, &text, [&](grpc::Status end) {
    status = std::move(end);
    ended.Notify();
  });
  const Reader behind = Send(1);  // on the same connection: the server hears of it, and of its end, later
  const auto call = relay_.WaitForCall(0);
  context.TryCancel();
  contexts_.back().TryCancel();
  ended.WaitForNotification();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  ASSERT_TRUE(call != nullptr && call->WaitCancelled());
  v1::ListModelsResponse models;
  EXPECT_TRUE(stub_->ListModels(&list_context, {}, &models).ok());
  absl::SleepFor(absl::Seconds(3));  // each call's context hears of it by itself, and nothing tells when
  done_.Notify();
  EXPECT_EQ(End(first), absl::OutOfRangeError("too long"));
  absl::Status behind_it;  // on the one thread
  do {
    behind_it = End(Send(kLongBytes));
  } while (absl::IsResourceExhausted(behind_it));  // what has ended takes its bytes for a moment longer
  EXPECT_EQ(behind_it, absl::OutOfRangeError("too long"));
  EXPECT_EQ(relay_.detokenized, 0);
  call->End();
  EXPECT_TRUE(absl::IsCancelled(End(behind)));
}

// On a thread that nobody else catches for; and here, where gRPC would call it UNIMPLEMENTED.
TEST_F(GenerateDoorLongTest, WhatThrowsEndsItsCallAndNotTheProcess) {
  relay_.check = [](const relay::GenerateRequest&) -> absl::Status { throw std::runtime_error("tokenising"); };
  relay_.detokenize = []() -> std::string { throw std::runtime_error("detokenising"); };
  for (const int64_t bytes : {int64_t{1}, kLongBytes}) {
    EXPECT_EQ(End(Send(bytes)), absl::InternalError("internal error"));
    v1::DetokenizeRequest request;
    request.set_model("m");
    for (int64_t i = 0; i < bytes; ++i) request.add_token_ids(1);
    v1::DetokenizeResponse text;
    grpc::ClientContext context;
    EXPECT_EQ(FromGrpc(stub_->Detokenize(&context, request, &text)), absl::InternalError("internal error"));
  }
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
