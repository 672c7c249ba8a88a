// SPDX-License-Identifier: Apache-2.0
// What requests that wait at an engine keep of memory.
#include <gtest/gtest.h>
#include <malloc.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/gateway/relay/relay_fixture.h"

namespace swiftcache::gateway {
namespace {

using fakes::FakeCall;

class RelayMemoryTest : public RelayFixture {};

// Of the process; 0 with a sanitizer's allocator.
size_t AllocatedBytes() { return mallinfo2().uordblks + mallinfo2().hblkhd; }

relay::GenerateRequest WithLongStopStrings(relay::GenerateRequest request) {
  std::vector<std::string> stop;
  for (char c = 'a'; c < 'a' + 16; ++c) stop.push_back(std::string(1024, c));
  request.sampling.stop = text::StopStrings(std::move(stop));
  return request;
}

TEST_F(RelayMemoryTest, ContinuationsShareTheMemoryOfStopStrings) {
  Serve({"a"});
  engines_["a"].SetScript(fakes::NeverAnswer);
  relay::GenerateRequest request = WithLongStopStrings(Prompt("x"));
  request.sampling.n = 128;
  const size_t before = AllocatedBytes();
  const auto call = relay_->Generate(request, std::make_shared<CollectingSink>());
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_LT(AllocatedBytes(), before + (8 << 20));
  (*call)->Cancel(relay::ClientGone());
}

TEST_F(RelayMemoryTest, PromptsOfOneHttpRequestShareTheMemoryOfStopStrings) {
  Serve({"a"});
  engines_["a"].SetScript(fakes::NeverAnswer);
  const relay::GenerateRequest shared = WithLongStopStrings(Prompt("x"));
  const size_t before = AllocatedBytes();
  std::vector<std::shared_ptr<relay::GenerateCall>> calls;
  for (int i = 0; i < 64; ++i) {
    const auto call = relay_->Generate(shared, std::make_shared<CollectingSink>());
    ASSERT_TRUE(call.ok()) << call.status();
    calls.push_back(*call);
  }
  EXPECT_LT(AllocatedBytes(), before + (8 << 20));
  for (const auto& call : calls) call->Cancel(relay::ClientGone());
}

TEST_F(RelayMemoryTest, APromptIsHeldOnlyAsTheTokenIdsOfItsEngine) {
  fleet::EngineStatus engine = Ready("a");
  engine.info.max_model_len_tokens = int64_t{1} << 30;
  fleet_->OnSnapshot("broker-1", {engine});
  WaitForText("m");
  constexpr int64_t kIds = 2 << 20, kBytes = kIds * sizeof(int32_t);
  for (const bool text : {true, false}) {
    // Not on the stack: TSan does not see how Abseil keeps it alive until Notify has returned.
    const auto sent = std::make_shared<absl::Notification>();
    engines_["a"].SetScript([sent](FakeCall& call) {
      sent->Notify();
      call.WaitCancelled();
    });
    relay::GenerateRequest request = Prompt(text ? std::string(kIds, 'x') : "");
    if (!text) request.input = std::vector<int32_t>(kIds, 'x');
    const size_t before = AllocatedBytes();
    const auto call = relay_->Generate(std::move(request), std::make_shared<CollectingSink>());
    ASSERT_TRUE(call.ok()) << call.status();
    sent->WaitForNotification();
    // The relay's copy and the engine's, in the place of what the test had.
    EXPECT_LT(AllocatedBytes(), before + 2 * kBytes - (text ? kIds : kBytes) + (1 << 20));
    (*call)->Cancel(relay::ClientGone());
  }
}

}  // namespace
}  // namespace swiftcache::gateway
