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
  void Send(int code, std::string, std::string body, HttpHeaders, std::shared_ptr<void> until_written) override {
    Enter([&] {
      status = code;
      written += body;
      held = std::move(until_written);
    });
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
  void OnDisconnect(std::function<void()> callback) override {
    on_disconnect_ = std::move(callback);
    if (gone_before) on_disconnect_();
  }
  void Disconnect() { on_disconnect_(); }

  std::string written;
  int status = 0;              // of Send
  std::shared_ptr<void> held;  // likewise
  int finished = 0;
  bool gone_before = false, gone_in_write = false;
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
  CompletionHandlerTest() {
    options_.endpoint = Endpoint::kCompletions;
    options_.model = "m";
    options_.logprobs = true;
  }
  void Run(int prompts, bool stream = true) {
    options_.stream = stream;
    Run(std::vector<relay::GenerateRequest>(prompts));
  }
  void Run(std::vector<relay::GenerateRequest> prompts) {
    auto handler = std::make_shared<CompletionHandler>(options_, "r", 0, responder_, budget_);
    handler->Run(relay_, std::move(prompts));
  }

  ResponseOptions options_;
  FakeRelay relay_;
  const std::shared_ptr<ByteBudget> budget_ = std::make_shared<ByteBudget>(1 << 20);
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

TEST_F(CompletionHandlerTest, AClientThatLeftBeforeItsTurnCostsNoTokens) {
  responder_->gone_before = true;
  Run(2);
  EXPECT_EQ(relay_.calls(), 0);
  ASSERT_EQ(relay_.refused().size(), 1);
  EXPECT_TRUE(absl::IsCancelled(relay_.refused()[0].second));
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

TEST_F(CompletionHandlerTest, WhatIsEchoedOfIdsIsLimitedByItsTextInAllAnswers) {
  options_.echo = true;
  options_.n = 2;
  options_.max_echo_bytes = 11;
  relay::GenerateRequest three_letters;
  three_letters.input = std::vector<int32_t>{1, 2, 3};
  Run({three_letters});
  EXPECT_FALSE(relay_.WaitForCall(0)->cancelled());
  Run({three_letters, three_letters});
  EXPECT_EQ(responder_->status, 400);
  EXPECT_NE(responder_->written.find("echo is true with 12 bytes in all answers, wants at most 11"), std::string::npos);
  EXPECT_TRUE(relay_.WaitForCall(1)->cancelled());
  EXPECT_TRUE(relay_.WaitForCall(2)->cancelled());
  for (int i = 0; i < 3; ++i) relay_.WaitForCall(i)->End(absl::CancelledError("the engine has heard"));
}

// Of which two do not fit into the budget: a token stands twice in the JSON.
relay::GenerateEvent LongLogprobs() {
  relay::GenerateEvent event = Text("a");
  event.logprobs = {{.token_id = 1, .logprob = -1, .token = std::string(300 << 10, 'a'), .top = {}}};
  return event;
}

TEST_F(CompletionHandlerTest, LogprobsThatAreNotStreamedEndTheAnswerWhereTheBudgetIsUsedUp) {
  Run(1, /*stream=*/false);
  const auto call = relay_.WaitForCall(0);
  call->Emit(LongLogprobs());
  EXPECT_FALSE(call->cancelled());
  call->Emit(LongLogprobs());
  EXPECT_TRUE(call->cancelled());
  EXPECT_EQ(responder_->status, 429);
  EXPECT_NE(responder_->written.find("1048576 bytes"), std::string::npos);
  EXPECT_TRUE(budget_->Take(1 << 20)) << "they are held no longer";
}

TEST_F(CompletionHandlerTest, LogprobsOfAnAnswerGoBackToTheBudgetOnceItIsWritten) {
  Run(1, /*stream=*/false);
  relay_.WaitForCall(0)->Emit(LongLogprobs());
  EXPECT_FALSE(budget_->Take(600 << 10));
  relay_.WaitForCall(0)->End();
  EXPECT_EQ(responder_->status, 200);
  EXPECT_FALSE(budget_->Take(600 << 10)) << "its client has not read it yet";
  responder_->held.reset();
  EXPECT_TRUE(budget_->Take(1 << 20));
}

TEST_F(CompletionHandlerTest, TextThatIsNotStreamedEndsTheAnswerWhereTheBudgetIsUsedUp) {
  Run(1, /*stream=*/false);
  const auto call = relay_.WaitForCall(0);
  call->Emit(Text(std::string(600 << 10, 'a')));
  EXPECT_FALSE(call->cancelled());
  call->Emit(Text(std::string(600 << 10, 'a')));
  EXPECT_TRUE(call->cancelled());
  EXPECT_EQ(responder_->status, 429);
  EXPECT_TRUE(budget_->Take(1 << 20)) << "it is held no longer";
}

TEST_F(CompletionHandlerTest, AnEchoIsTakenFromTheBudgetOfEachAnswerThatIsNotStreamed) {
  options_.echo = true;
  options_.n = 2;
  relay::GenerateRequest long_prompt;
  long_prompt.input = std::string(300 << 10, 'p');
  options_.stream = true;
  Run({long_prompt});
  for (const int32_t index : {0, 1}) {
    relay::GenerateEvent event = Text("a");
    event.index = index;
    relay_.WaitForCall(0)->Emit(event);
  }
  EXPECT_FALSE(budget_->Take(800 << 10));
  EXPECT_TRUE(budget_->Take(700 << 10)) << "the prompt's own";
  relay_.WaitForCall(0)->End();
  budget_->Give(700 << 10);
  options_.stream = false;
  Run({long_prompt});
  for (const int32_t index : {0, 1}) {
    relay::GenerateEvent event = Text("a");
    event.index = index;
    relay_.WaitForCall(1)->Emit(event);
  }
  EXPECT_FALSE(budget_->Take(200 << 10)) << "and two answers'";
  relay_.WaitForCall(1)->End();
  EXPECT_EQ(responder_->status, 200);
  responder_->held.reset();
  EXPECT_TRUE(budget_->Take(1 << 20));
}

// A call that was cancelled lasts until its engine says so.
TEST_F(CompletionHandlerTest, LogprobsThatNobodyGetsAnyMoreGoBackToTheBudgetBeforeTheirCallsEnd) {
  for (const bool client_leaves : {true, false}) {
    Run(2, /*stream=*/false);
    const auto call = relay_.WaitForCall(client_leaves ? 0 : 2), other = relay_.WaitForCall(client_leaves ? 1 : 3);
    call->Emit(LongLogprobs());
    EXPECT_FALSE(budget_->Take(600 << 10));
    client_leaves ? responder_->Disconnect() : other->End(absl::InternalError("x"));
    EXPECT_TRUE(call->cancelled());
    EXPECT_EQ(call->why_cancelled(), client_leaves ? relay::ClientGone() : absl::InternalError("x"));
    ASSERT_TRUE(budget_->Take(1 << 20));
    budget_->Give(1 << 20);
    call->Emit(LongLogprobs());  // on its way when it was cancelled
    EXPECT_TRUE(budget_->Take(1 << 20));
    budget_->Give(1 << 20);
  }
}

TEST_F(CompletionHandlerTest, LogprobsThatAreStreamedTakeNothingOfTheBudget) {
  Run(1, /*stream=*/true);
  for (int i = 0; i < 4; ++i) relay_.WaitForCall(0)->Emit(LongLogprobs());
  EXPECT_FALSE(relay_.WaitForCall(0)->cancelled());
  EXPECT_TRUE(budget_->Take(1 << 20));
  relay_.WaitForCall(0)->End();
}

}  // namespace
}  // namespace swiftcache::gateway::openai
