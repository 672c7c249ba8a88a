// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai/completion_handler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fakes/fake_relay.h"

namespace swiftcache::gateway::openai {
namespace {

using fakes::FakeRelay;

/// One thread at a time may use it, which it checks; may call back from within Write.
class CallingBackResponder final : public HttpResponder {
 public:
  void Send(int, std::string, std::string body, HttpHeaders) override {
    Enter([&] { written += body; });
  }
  void StartStream(int, std::string, HttpHeaders) override {
    Enter([] {});
  }
  bool Write(std::string chunk) override {
    Enter([&] {
      written += chunk;
      if (gone_in_write) on_disconnect_();
    });
    return !gone_in_write;
  }
  void Finish() override {
    Enter([&] { ++finished; });
  }
  void OnDisconnect(std::function<void()> callback) override { on_disconnect_ = std::move(callback); }

  std::string written;
  int finished = 0;
  bool gone_in_write = false;
  std::atomic<bool> overlapped = false;

 private:
  void Enter(const std::function<void()>& act) {
    if (inside_.exchange(true)) overlapped = true;
    act();
    inside_ = false;
  }
  std::function<void()> on_disconnect_;
  std::atomic<bool> inside_ = false;
};

relay::GenerateEvent Text(std::string text) {
  return {.index = 0, .text = std::move(text), .token_ids = {1}, .logprobs = {}, .finish = {}, .usage = {}};
}

class CompletionHandlerTest : public ::testing::Test {
 protected:
  void Run(int prompts) {
    ResponseOptions options;
    options.endpoint = Endpoint::kCompletions;
    options.model = "m";
    options.stream = true;
    auto handler = std::make_shared<CompletionHandler>(options, "r", 0, responder_);
    handler->Run(relay_, std::vector<relay::GenerateRequest>(prompts));
  }

  FakeRelay relay_;
  const std::shared_ptr<CallingBackResponder> responder_ = std::make_shared<CallingBackResponder>();
};

TEST_F(CompletionHandlerTest, AResponderMayReportTheClientsGoingFromWithinWrite) {
  responder_->gone_in_write = true;
  Run(1);
  relay_.WaitForCall(0)->Emit(Text("a"));
  EXPECT_TRUE(relay_.WaitForCall(0)->cancelled());
  relay_.WaitForCall(0)->End(absl::CancelledError("cancelled"));
  EXPECT_EQ(responder_->finished, 0);
}

TEST_F(CompletionHandlerTest, ChunksOfPromptsThatSpeakAtOnceLeaveOneByOneEachPromptsInOrder) {
  constexpr int kPrompts = 4, kTokens = 500;
  Run(kPrompts);
  std::vector<std::thread> engines;
  for (int i = 0; i < kPrompts; ++i) {
    engines.emplace_back([this, i] {
      for (int k = 0; k < kTokens; ++k) {
        relay_.WaitForCall(i)->Emit(Text("<" + std::to_string(i) + ":" + std::to_string(k) + ">"));
      }
      relay_.WaitForCall(i)->End();
    });
  }
  for (std::thread& engine : engines) engine.join();
  EXPECT_FALSE(responder_->overlapped);
  EXPECT_EQ(responder_->finished, 1);
  for (int i = 0; i < kPrompts; ++i) {
    size_t at = 0;
    for (int k = 0; k < kTokens; ++k) {
      const size_t next = responder_->written.find("<" + std::to_string(i) + ":" + std::to_string(k) + ">", at);
      ASSERT_NE(next, std::string::npos) << "prompt " << i << " token " << k;
      at = next;
    }
  }
  EXPECT_TRUE(responder_->written.ends_with("data: [DONE]\n\n"));
}

}  // namespace
}  // namespace swiftcache::gateway::openai
