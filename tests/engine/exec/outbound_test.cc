// SPDX-License-Identifier: Apache-2.0
// The engine's sinks are served by a thread of their own, which may be late.
#include "engine/exec/outbound.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "engine/exec/engine.h"
#include "tests/engine/exec/loop_harness.h"
#include "tests/fakes/cpu.h"

namespace swiftcache::engine::exec {
namespace {

using ::testing::HasSubstr;

const FakeModelOptions kModel = {.vocab_size = 40, .max_context_tokens = 400, .block_tokens = 4};
const std::vector<int32_t> kPrompt = {1, 2, 3};

/// Does what the test wants before it records.
class HookedSink final : public ResponseSink {
 public:
  struct Hooks {
    std::function<void()> on_tokens = [] {}, on_done = [] {}, on_step_end = [] {}, on_end = [] {};
  };
  HookedSink(std::shared_ptr<Recording> recording, Hooks hooks)
      : recording_(std::move(recording)), hooks_(std::move(hooks)) {}
  ~HookedSink() override { hooks_.on_end(); }
  void OnTokens(TokenEvent event) override {
    hooks_.on_tokens();
    recording_->Add(std::move(event));
  }
  void OnDone(absl::Status status) override {
    hooks_.on_done();
    recording_->Done(std::move(status));
  }
  void OnStepEnd() override { hooks_.on_step_end(); }

 private:
  const std::shared_ptr<Recording> recording_;
  const Hooks hooks_;
};

class OutboundTest : public ::testing::Test {
 protected:
  void Start(EngineOptions options = {}) {
    options.block_tokens = kModel.block_tokens;
    options.kv_cache_bytes = 200 * kModel.layout().block_bytes();
    FakeModelOptions model = kModel;
    model.on_step = [this](const FakeStep&) {
      absl::MutexLock lock(&mutex_);
      loop_thread_ = std::this_thread::get_id();
      return absl::OkStatus();
    };
    auto engine = Engine::Create(options, Cpu(), std::make_unique<FakeModel>(model), clock_, metrics_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    engine_->Start();
  }
  absl::Status Submit(const std::string& id, int64_t tokens, std::shared_ptr<Recording> recording,
                      HookedSink::Hooks hooks = {}) {
    Request request = Greedy(kPrompt, tokens);
    request.request_id = id;
    return engine_->Submit(std::move(request), std::make_unique<HookedSink>(std::move(recording), std::move(hooks)));
  }
  /// A request whose sink holds up the thread until `released_` is notified, from its first token on.
  std::shared_ptr<Recording> SubmitHeld(const std::string& id, int64_t tokens) {
    auto recording = std::make_shared<Recording>();
    const absl::Status status = Submit(id, tokens, recording, {.on_tokens = [this] {
                                         if (!reached_.HasBeenNotified()) reached_.Notify();
                                         released_.WaitForNotification();
                                       }});
    EXPECT_TRUE(status.ok()) << status;
    reached_.WaitForNotification();
    return recording;
  }
  bool LoadBecomes(const std::function<bool(const EngineLoad&)>& condition) {
    const absl::Time give_up = absl::Now() + absl::Seconds(60);
    while (!condition(engine_->Load())) {
      if (absl::Now() > give_up) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }
  static bool Idle(const EngineLoad& load) { return load.running_requests + load.waiting_requests == 0; }

  absl::Mutex mutex_;
  std::thread::id loop_thread_ ABSL_GUARDED_BY(mutex_);
  absl::Notification reached_, released_;
  RealClock clock_;
  Metrics metrics_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(OutboundTest, ASinkThatIsHeldUpStopsNoStep) {
  Start();
  const auto held = SubmitHeld("held", 50);
  std::vector<std::shared_ptr<Recording>> others;
  for (int i = 0; i < 10; ++i) {
    others.push_back(std::make_shared<Recording>());
    ASSERT_TRUE(Submit(absl::StrCat("other", i), 20, others.back()).ok());
  }
  ASSERT_TRUE(LoadBecomes(Idle)) << "all are computed, though nobody has heard a token";
  EXPECT_EQ(engine_->Load().kv_blocks_used, 0);
  for (const auto& other : others) EXPECT_TRUE(other->tokens().empty());
  EXPECT_TRUE(held->tokens().empty());
  released_.Notify();
  EXPECT_TRUE(held->Wait().ok());
  EXPECT_EQ(held->tokens(), FakeGreedy(kModel, kPrompt, 50));
  for (const auto& other : others) {
    EXPECT_TRUE(other->Wait().ok());
    EXPECT_EQ(other->tokens(), FakeGreedy(kModel, kPrompt, 20));
  }
}

TEST_F(OutboundTest, TheEndOfAStepIsHeardBehindItsTokensAndTheEndOfARequest) {
  Start();
  std::string heard;
  absl::Notification gone;
  const auto recording = std::make_shared<Recording>();
  ASSERT_TRUE(Submit("one", 2, recording,
                     {.on_tokens = [&] { heard += "token "; },
                      .on_done = [&] { heard += "done "; },
                      .on_step_end = [&] { heard += "step "; },
                      .on_end = [&] { gone.Notify(); }})
                  .ok());
  gone.WaitForNotification();
  EXPECT_EQ(heard, "token step token done step step ");
}

TEST_F(OutboundTest, RequestsAreRefusedWhileTooManyHaveNotHeardOfTheirEnd) {
  Start({.max_num_seqs = 3, .max_waiting_requests = 4});
  const auto held = SubmitHeld("held", 5);
  std::vector<std::shared_ptr<Recording>> ended;
  absl::Status status;
  while (ended.size() < 100) {
    ASSERT_TRUE(LoadBecomes(Idle));
    ended.push_back(std::make_shared<Recording>());
    status = Submit(absl::StrCat("r", ended.size()), 2, ended.back());
    if (!status.ok()) break;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the answers to 7 requests are still to be sent"));
  EXPECT_EQ(ended.size(), 7) << "the refused one, and six beside the one that is held up";
  released_.Notify();
  ended.pop_back();
  for (const auto& recording : ended) EXPECT_TRUE(recording->Wait().ok());
  const auto last = std::make_shared<Recording>();
  ASSERT_TRUE(Submit("last", 2, last).ok());
  EXPECT_TRUE(last->Wait().ok());
}

TEST_F(OutboundTest, AnIdIsFreeAndTheLoadSaysSoWhenTheSinkHearsTheEnd) {
  Start();
  const auto first = std::make_shared<Recording>(), second = std::make_shared<Recording>();
  absl::Status submitted = absl::UnknownError("not submitted");
  EngineLoad load;
  ASSERT_TRUE(Submit("same", 4, first,
                     {.on_done =
                          [&] {
                            load = engine_->Load();
                            submitted = Submit("same", 6, second);
                          }})
                  .ok());
  EXPECT_TRUE(first->Wait().ok());
  EXPECT_TRUE(submitted.ok()) << submitted;
  EXPECT_TRUE(Idle(load)) << load.running_requests << " run, " << load.waiting_requests << " wait";
  EXPECT_EQ(load.kv_blocks_used, 0);
  EXPECT_TRUE(second->Wait().ok());
  EXPECT_EQ(second->tokens(), FakeGreedy(kModel, kPrompt, 6));
}

TEST_F(OutboundTest, AnIdIsNotFreeBefore) {
  Start();
  const auto held = SubmitHeld("held", 3);
  ASSERT_TRUE(LoadBecomes(Idle));
  EXPECT_EQ(Submit("held", 3, std::make_shared<Recording>()).code(), absl::StatusCode::kAlreadyExists);
  released_.Notify();
}

TEST_F(OutboundTest, DrainReturnsWhenEverySinkHasHeardTheEndAndIsGone) {
  Start();
  const auto held = SubmitHeld("held", 300);
  int gone = 0;
  std::vector<std::shared_ptr<Recording>> others;
  for (int i = 0; i < 5; ++i) {
    others.push_back(std::make_shared<Recording>());
    ASSERT_TRUE(Submit(absl::StrCat("other", i), 300, others.back(), {.on_end = [&gone] { ++gone; }}).ok());
  }
  std::thread releases([this] {
    absl::SleepFor(absl::Milliseconds(30));
    released_.Notify();
  });
  engine_->ShutDown(absl::InfinitePast());
  EXPECT_TRUE(held->done());
  for (const auto& other : others) EXPECT_TRUE(other->done());
  EXPECT_EQ(gone, 5);
  releases.join();
}

TEST_F(OutboundTest, SinksAreCalledAndDestroyedByOneThreadThatIsNotTheLoops) {
  Start();
  std::vector<std::thread::id> threads;
  const auto note = [&threads] { threads.push_back(std::this_thread::get_id()); };
  const auto recording = std::make_shared<Recording>();
  ASSERT_TRUE(Submit("r", 10, recording, {.on_tokens = note, .on_done = note, .on_end = note}).ok());
  EXPECT_TRUE(recording->Wait().ok());
  engine_->ShutDown(absl::InfinitePast());
  EXPECT_THAT(threads, ::testing::SizeIs(12));
  absl::MutexLock lock(&mutex_);
  for (const std::thread::id& thread : threads) {
    EXPECT_EQ(thread, threads.front());
    EXPECT_NE(thread, loop_thread_);
    EXPECT_NE(thread, std::this_thread::get_id());
  }
}

TEST_F(OutboundTest, TheLoopsThreadDoesWhatItIsToldFirst) {
  std::thread::id started;
  Start({.at_loop_start = [&started] { started = std::this_thread::get_id(); }});
  const auto recording = std::make_shared<Recording>();
  ASSERT_TRUE(Submit("r", 1, recording).ok());
  EXPECT_TRUE(recording->Wait().ok());
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(started, loop_thread_);
}

}  // namespace
}  // namespace swiftcache::engine::exec
