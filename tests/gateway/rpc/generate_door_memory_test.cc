// SPDX-License-Identifier: Apache-2.0
// What clients can make the door take of memory.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "gateway/rpc/generate_door.h"
#include "tests/fakes/fake_relay.h"

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
  GenerateDoorMemoryTest() : door_(relay_, {}) { server_ = *RpcServer::Create({.listen = "127.0.0.1:0"}, {&door_}); }
  ~GenerateDoorMemoryTest() override { server_->Stop(absl::InfinitePast()); }

  // Sends wire bytes, as no client that knows the proto file would.
  absl::Status Send(const std::string& method, const std::string& bytes) {
    grpc::GenericStub stub(CreateRpcChannel(server_->address(), {}));
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(60));
    context.set_wait_for_ready(true);
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    absl::Notification done;
    grpc::Status status;
    stub.UnaryCall(&context, absl::StrCat("/swiftcache.v1.GenerateService/", method), grpc::StubOptions(), &request,
                   &response, [&](grpc::Status answered) {
                     status = std::move(answered);
                     done.Notify();
                   });
    done.WaitForNotification();
    return FromGrpc(status);
  }

  fakes::FakeRelay relay_;
  rpc::GenerateDoor door_;
  std::unique_ptr<RpcServer> server_;
};

// As many of `element` as 8 MiB hold, in field `holder` if that is not 0.
std::string Full(const std::string& element, int holder) {
  constexpr size_t kBytes = 8 << 20;
  std::string bytes;
  while (bytes.size() < kBytes) bytes += element;
  if (holder == 0) return bytes;
  std::string out(1, static_cast<char>(holder << 3 | 2));
  size_t length = bytes.size();
  for (; length >= 0x80; length >>= 7) out += static_cast<char>(length | 0x80);
  return out + static_cast<char>(length) + bytes;
}

TEST_F(GenerateDoorMemoryTest, ARequestOfVeryManyPartsIsRefusedBeforeItIsParsed) {
  const std::string not_known = Full("\xf8\x01\x01", 0);  // field 31
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
  const auto expect_refused = [this](const std::string& method, const std::string& bytes, const std::string& name) {
    const absl::Status status = Send(method, bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << method << " " << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("more than 131072 fields")) << method << " " << name;
  };
  for (const auto& c : cases) expect_refused(c.method, c.bytes, c.name);
  const auto* service = v1::GenerateRequest::descriptor()->file()->FindServiceByName("GenerateService");
  for (int i = 0; i < service->method_count(); ++i) {
    expect_refused(service->method(i)->name(), not_known, "what is not known");
  }
  EXPECT_LT(MostResidentBytes() - before, 64 << 20);  // both ends hold the 8 MiB
  EXPECT_EQ(relay_.calls(), 0);
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
  EXPECT_LT(most, 8 << 20);  // of which 4 MiB are the messages
}

}  // namespace
}  // namespace swiftcache::gateway
