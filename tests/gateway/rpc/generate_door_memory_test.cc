// SPDX-License-Identifier: Apache-2.0
// What clients can make the door take of memory.
#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "gateway/rpc/generate_door.h"
#include "tests/fakes/fake_relay.h"
#include "tests/fakes/raw_rpc_client.h"

namespace swiftcache::gateway {
namespace {

using ::testing::HasSubstr;

int64_t MostResidentBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * int64_t{1024};
}

// Of the process; 0 with a sanitizer's allocator.
int64_t AllocatedBytes() {
  const auto info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

class GenerateDoorMemoryTest : public ::testing::Test {
 protected:
  explicit GenerateDoorMemoryTest(const rpc::GenerateDoor::Options& options = {}) : door_(relay_, options, clock_) {
    server_ = *RpcServer::Create({.listen = "127.0.0.1:0"}, {&door_});
  }
  ~GenerateDoorMemoryTest() override { server_->Stop(absl::InfinitePast()); }

  absl::Status Send(const std::string& method, const std::string& bytes) {
    return FromGrpc(
        fakes::SendBytes(server_->address(), absl::StrCat("/swiftcache.v1.GenerateService/", method), bytes));
  }

  const RealClock clock_;
  fakes::FakeRelay relay_;
  rpc::GenerateDoor door_;
  std::unique_ptr<RpcServer> server_;
};

constexpr size_t kBytes = 8 << 20;

// As many of `element` as they hold, in field `holder`.
std::string Full(const std::string& element, int holder) {
  std::string bytes;
  while (bytes.size() < kBytes) bytes += element;
  std::string out(1, static_cast<char>(holder << 3 | 2));
  size_t length = bytes.size();
  for (; length >= 0x80; length >>= 7) out += static_cast<char>(length | 0x80);
  return out + static_cast<char>(length) + bytes;
}

TEST_F(GenerateDoorMemoryTest, ARequestOfVeryManyPartsIsRefusedBeforeItIsParsed) {
  const struct {
    const char *name, *method;
    std::string bytes;
  } cases[] = {
      {"chat.messages", "Generate", Full(std::string("\x0a\0", 2), 5)},
      {"chat.chat_template_kwargs", "Generate", Full(std::string("\x22\0", 2), 5)},
      {"sampling.stop", "Generate", Full(std::string("\x3a\0", 2), 6)},
      {"chat.messages", "Tokenize", Full(std::string("\x0a\0", 2), 3)},
  };
  ASSERT_EQ(Send("ListModels", ""), absl::OkStatus());
  const int64_t before = MostResidentBytes();
  for (const auto& c : cases) {
    const absl::Status status = Send(c.method, c.bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.method << " " << c.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("more than 131072 fields")) << c.method << " " << c.name;
  }
  const auto* file = v1::GenerateRequest::descriptor()->file();
  fakes::ExpectEveryMethodRefusesTooManyFields(server_->address(), *file->FindServiceByName("GenerateService"), kBytes);
  EXPECT_LT(MostResidentBytes() - before, 64 << 20);  // both ends hold the 8 MiB
  EXPECT_EQ(relay_.calls(), 0);
}

/// A call whose client reads the headers of the answer, and no more until it is told to.
class UnreadCall final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  UnreadCall(const std::string& address, const std::string& method, const google::protobuf::Message& message)
      : stub_(ChannelOfItsOwn(address)) {
    const grpc::Slice slice(message.SerializeAsString());
    request_ = grpc::ByteBuffer(&slice, 1);
    context_.set_wait_for_ready(true);
    SetTimeout(context_, absl::Minutes(5));
    stub_.PrepareBidiStreamingCall(&context_, method, grpc::StubOptions(), this);
    StartWriteLast(&request_, grpc::WriteOptions());
    AddHold();
    StartCall();
    begun_.WaitForNotification();
  }
  void OnReadInitialMetadataDone(bool) override { begun_.Notify(); }
  void OnDone(const grpc::Status& status) override {
    status_ = FromGrpc(status);
    done_.Notify();
  }
  void Cancel() { context_.TryCancel(); }
  /// Reads what there is.
  absl::Status End() {
    StartRead(&answer_);
    RemoveHold();
    done_.WaitForNotification();
    return status_;
  }

 private:
  static std::shared_ptr<grpc::Channel> ChannelOfItsOwn(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 10);  // what comes without being read
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer request_, answer_;
  absl::Notification begun_, done_;
  absl::Status status_;
};

class UnreadAnswersTest : public GenerateDoorMemoryTest {
 protected:
  explicit UnreadAnswersTest(absl::Duration answer_timeout = absl::Hours(1))
      : GenerateDoorMemoryTest({.max_held_answer_bytes = 3 * kAnswerBytes, .answer_timeout = answer_timeout}) {
    relay_.detokenize = [] { return std::string(kAnswerBytes, 'x'); };
    request_.add_token_ids(1);
  }
  absl::Status Detokenize() { return Send("Detokenize", request_.SerializeAsString()); }
  // Where it has none, after a minute.
  bool HasRoomInTime() {
    absl::Status status = Detokenize();
    for (int i = 0; i < 6000 && absl::IsResourceExhausted(status); ++i) {
      absl::SleepFor(absl::Milliseconds(10));
      status = Detokenize();
    }
    return !absl::IsResourceExhausted(status);
  }

  static constexpr int64_t kAnswerBytes = 2 << 20;  // counted twice: as a message, and on the wire
  static constexpr char kDetokenize[] = "/swiftcache.v1.GenerateService/Detokenize";
  v1::DetokenizeRequest request_;
};

TEST_F(UnreadAnswersTest, TheyAreBoundedTogetherUntilTheyAreReadOrTheirClientIsGone) {
  UnreadCall unread(server_->address(), kDetokenize, request_);
  absl::Status status = Detokenize();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("of the ", 3 * kAnswerBytes, " bytes")));
  EXPECT_TRUE(RetryDelayOf(status).has_value());
  v1::TokenizeRequest tokenize;
  tokenize.set_text(std::string(kAnswerBytes, 'x'));
  status = Send("Tokenize", tokenize.SerializeAsString());
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << "requests count, too: " << status;
  unread.Cancel();
  EXPECT_TRUE(absl::IsCancelled(unread.End()));
  EXPECT_TRUE(HasRoomInTime());
}

class StalledAnswersTest : public UnreadAnswersTest {
 protected:
  StalledAnswersTest() : UnreadAnswersTest(absl::Milliseconds(100)) {}
};

TEST_F(StalledAnswersTest, AnAnswerThatIsNotReadInTimeIsDropped) {
  UnreadCall unread(server_->address(), kDetokenize, request_);
  EXPECT_TRUE(HasRoomInTime());
  EXPECT_EQ(unread.End().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(GenerateDoorMemoryTest, WhatAClientLeavesUnreadIsBoundedInMemoryAlsoInMessagesOfOneToken) {
  const int64_t before = AllocatedBytes();
  int64_t most = 0;
  relay_.on_generate = [&](const std::shared_ptr<fakes::FakeCall>& call) {  // no message leaves before it returns
    for (int i = 0; i < 200'000; ++i) {
      call->Emit({.text = "x", .token_ids = {i}});
      if (i % 1000 == 0) most = std::max(most, AllocatedBytes() - before);
    }
  };
  v1::GenerateRequest request;
  request.set_prompt("x");
  EXPECT_EQ(Send("Generate", request.SerializeAsString()).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LT(most, 24 << 20);  // of which 16 MiB are counted
}

}  // namespace
}  // namespace swiftcache::gateway
