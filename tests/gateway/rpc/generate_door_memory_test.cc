// SPDX-License-Identifier: Apache-2.0
// What clients can make the door take of memory.
#include <gmock/gmock.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
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
  GenerateDoorMemoryTest() : door_(relay_, {}, clock_) {
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
