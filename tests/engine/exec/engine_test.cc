// SPDX-License-Identifier: Apache-2.0
// The engine's face, with its thread running.
#include "engine/exec/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"
#include "tests/engine/exec/loop_harness.h"
#include "tests/fakes/cpu.h"
#include "tests/fakes/idle_cpu.h"

namespace swiftcache::engine::exec {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

const FakeModelOptions kLongModel = {.vocab_size = 40, .max_context_tokens = 400, .block_tokens = 4};

// Holds the model's next steps until opened.
class Gate {
 public:
  absl::Status Pass() {
    absl::MutexLock lock(&mutex_);
    waiting_ = true;
    mutex_.Await(absl::Condition(&open_));
    return absl::OkStatus();
  }
  void Open() {
    absl::MutexLock lock(&mutex_);
    open_ = true;
  }
  void WaitUntilReached() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&waiting_));
  }

 private:
  absl::Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;
};

class EngineTest : public ::testing::Test {
 protected:
  void Create(EngineOptions options = {}, FakeModelOptions model = kLongModel) {
    options.block_tokens = model.block_tokens;
    if (!options.kv_cache_bytes) options.kv_cache_bytes = 200 * model.layout().block_bytes();
    auto engine = Engine::Create(options, Cpu(), std::make_unique<FakeModel>(model), clock_, metrics_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  void CreateGated(const EngineOptions& options = {}) {
    FakeModelOptions model = kLongModel;
    model.on_step = [this](const FakeStep&) { return gate_.Pass(); };
    Create(options, model);
  }
  absl::Status Submit(Request request, std::shared_ptr<Recording>* recording = nullptr) {
    auto made = std::make_shared<Recording>();
    if (recording != nullptr) *recording = made;
    if (request.request_id.empty()) request.request_id = "r" + std::to_string(next_id_++);
    const absl::Status status = engine_->Submit(std::move(request), std::make_unique<RecordingSink>(made));
    EXPECT_FALSE(!status.ok() && made->done()) << "a refused request's sink is never called";
    return status;
  }
  // -1: the scrape has no such line.
  int Refused(const std::string& reason) const {
    const std::string scrape = metrics_.Serialize();
    const std::string line = "\nswiftcache_requests_refused_total{reason=\"" + reason + "\"} ";
    const size_t at = scrape.find(line);
    return at == std::string::npos ? -1 : std::stoi(scrape.substr(at + line.size()));
  }
  static Request Named(const std::string& id, int64_t max_tokens = 5) {
    Request request = Greedy({1, 2, 3, 4, 5}, max_tokens);
    request.request_id = id;
    return request;
  }

  Gate gate_;
  RealClock clock_;
  Metrics metrics_;
  std::unique_ptr<Engine> engine_;
  int64_t next_id_ = 0;
};

TEST_F(EngineTest, ServesARequest) {
  Create();
  engine_->Start();
  std::shared_ptr<Recording> recording;
  ASSERT_TRUE(Submit(Greedy({1, 2, 3}, 10), &recording).ok());
  EXPECT_TRUE(recording->Wait().ok());
  const std::vector<int32_t> prompt = {1, 2, 3};
  EXPECT_EQ(recording->tokens(), FakeGreedy(kLongModel, prompt, 10));
  const EngineLoad load = engine_->Load();
  EXPECT_EQ(load.kv_blocks_used, 0) << "free before OnDone";
  EXPECT_EQ(load.running_requests + load.waiting_requests, 0);
  EXPECT_EQ(load.steps_total, 10);
  EXPECT_EQ(load.progress, 10 * (1 + kLongModel.num_layers)) << "moves with each layer too";
}

TEST_F(EngineTest, RefusesOptionsOutOfRangeByTheNameOfTheFlag) {
  struct Case {
    std::string flag;
    EngineOptions options;
  };
  std::vector<Case> cases(11, {"", {.kv_cache_bytes = 1 << 20}});
  cases[0].flag = "--block_tokens", cases[0].options.block_tokens = 0;
  cases[1].flag = "--max_num_seqs", cases[1].options.max_num_seqs = 0;
  cases[2].flag = "--max_num_batched_tokens", cases[2].options.max_num_batched_tokens = -1;
  cases[3].flag = "--max_model_len", cases[3].options.max_model_len_tokens = 401;
  cases[4].flag = "--max_waiting_requests", cases[4].options.max_waiting_requests = 0;
  cases[5].flag = "--kv_cache_bytes", cases[5].options.kv_cache_bytes = 100;
  cases[6].flag = "--block_tokens", cases[6].options.block_tokens = int64_t{1} << 40;
  cases[7].flag = "--gpu_memory_utilization", cases[7].options.gpu_memory_utilization = 0;
  cases[8].flag = "--gpu_memory_utilization", cases[8].options.gpu_memory_utilization = 1.01;
  cases[9].flag = "--target_itl", cases[9].options.target_itl = -absl::Milliseconds(1);
  cases[10].flag = "--max_tpot", cases[10].options.max_tpot = -absl::Milliseconds(1);
  for (const Case& c : cases) {
    const auto engine = Engine::Create(c.options, Cpu(), std::make_unique<FakeModel>(kLongModel), clock_, metrics_);
    EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument) << c.flag;
    EXPECT_THAT(std::string(engine.status().message()), HasSubstr(c.flag));
  }
}

TEST_F(EngineTest, RefusesMemoryThatIsNotThere) {
  const EngineOptions options{.kv_cache_bytes = int64_t{1} << 50, .block_tokens = 4096};
  FakeModelOptions wide = kLongModel;
  wide.head_dim = 1024;
  const auto engine = Engine::Create(options, Cpu(), std::make_unique<FakeModel>(wide), clock_, metrics_);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(EngineTest, RefusesBadRequestsWithTheirCode) {
  Create();
  engine_->Start();
  Request empty = Named("a"), outside = Named("b"), negative = Named("c"), hot = Named("d"), many = Named("e");
  empty.prompt.clear();
  outside.prompt[2] = 40;
  negative.prompt[0] = -1;
  hot.sampling.top_p = 7;
  many.n = 129;
  for (const Request& request : {empty, outside, negative, hot, many, Named("f", 0)}) {
    EXPECT_EQ(Submit(request).code(), absl::StatusCode::kInvalidArgument) << request.request_id;
  }
  EXPECT_EQ(Submit(Greedy(std::vector<int32_t>(400, 1), 1)).code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(Submit(Greedy(std::vector<int32_t>(399, 1), 1)).ok());
}

TEST_F(EngineTest, APromptLongerThanTheArenaIsOutOfRange) {
  Create({.kv_cache_bytes = 10 * kLongModel.layout().block_bytes()});
  EXPECT_EQ(engine_->max_model_len_tokens(), 40);
  engine_->Start();
  EXPECT_EQ(Submit(Greedy(std::vector<int32_t>(40, 1), 1)).code(), absl::StatusCode::kOutOfRange);
  std::shared_ptr<Recording> recording;
  ASSERT_TRUE(Submit(Greedy(std::vector<int32_t>(30, 1), 1000), &recording).ok());
  EXPECT_TRUE(recording->Wait().ok());
  EXPECT_THAT(recording->tokens(), SizeIs(10));
  EXPECT_EQ(recording->output().finish, FinishReason::kLength);
}

TEST_F(EngineTest, ALostDeviceIsToldOnceAndNothingIsAcceptedAnyMore) {
  FakeModelOptions model = kLongModel;
  model.on_step = [](const FakeStep&) { return absl::DataLossError("gone"); };
  std::atomic<int> told = 0;
  EngineOptions options{.kv_cache_bytes = 10 * model.layout().block_bytes(), .block_tokens = model.block_tokens};
  options.on_device_lost = [&told](const absl::Status& why) { told += why.message() == "gone"; };
  engine_ = *Engine::Create(options, Cpu(), std::make_unique<FakeModel>(model), clock_, metrics_);
  engine_->Start();
  std::shared_ptr<Recording> recording;
  ASSERT_TRUE(Submit(Named("a"), &recording).ok());
  EXPECT_TRUE(absl::IsUnavailable(recording->Wait()));
  while (told == 0) std::this_thread::yield();
  EXPECT_TRUE(absl::IsUnavailable(Submit(Named("b"))));
  engine_->ShutDown(absl::InfiniteFuture());
  EXPECT_EQ(told, 1);
}

TEST_F(EngineTest, ALiveIdIsRefusedAndAFinishedOneMayBeUsedAgain) {
  CreateGated();
  engine_->Start();
  std::shared_ptr<Recording> first, second;
  ASSERT_TRUE(Submit(Named("same"), &first).ok());
  EXPECT_EQ(Submit(Named("same")).code(), absl::StatusCode::kAlreadyExists);
  gate_.Open();
  EXPECT_TRUE(first->Wait().ok());
  ASSERT_TRUE(Submit(Named("same"), &second).ok());
  EXPECT_TRUE(second->Wait().ok());
}

TEST_F(EngineTest, AFullQueueIsResourceExhaustedUntilItMoves) {
  CreateGated({.max_num_seqs = 1, .max_waiting_requests = 2});
  engine_->Start();
  std::shared_ptr<Recording> recording;
  ASSERT_TRUE(Submit(Named("running")).ok());
  gate_.WaitUntilReached();
  ASSERT_TRUE(Submit(Named("w1")).ok());
  ASSERT_TRUE(Submit(Named("w2"), &recording).ok());
  EXPECT_EQ(Submit(Named("w3")).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(engine_->Load().waiting_requests, 2);
  EXPECT_EQ(Submit(Named("w3")).code(), absl::StatusCode::kResourceExhausted) << "a refused id is not live";
  gate_.Open();
  EXPECT_TRUE(recording->Wait().ok());
  EXPECT_TRUE(Submit(Named("w3")).ok());
}

TEST_F(EngineTest, WhatIsSaidOfLeasesTakesNoRequestsPlace) {
  CreateGated({.max_num_seqs = 1, .max_waiting_requests = 2});
  engine_->Start();
  ASSERT_TRUE(Submit(Named("running")).ok());
  gate_.WaitUntilReached();
  for (int64_t i = 1; i <= 10; ++i) engine_->Post(coordinator::StoredMessage{transport::Ticket(i)});
  EXPECT_TRUE(Submit(Named("waits")).ok());
  gate_.Open();
}

TEST_F(EngineTest, CancelEndsARequestWithinAStep) {
  Create();
  engine_->Start();
  std::shared_ptr<Recording> recording;
  ASSERT_TRUE(Submit(Named("a", 395), &recording).ok());
  recording->WaitForTokens(2);
  engine_->Cancel("a", {}, {});
  engine_->Cancel("nobody", {}, {});
  const absl::Status status = recording->Wait();
  EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kCancelled) << status;
  EXPECT_EQ(engine_->Load().kv_blocks_used, 0);
}

TEST_F(EngineTest, CancelOfARequestThatHasEndedLeavesTheNextOfItsIdAlone) {
  CreateGated();
  engine_->Start();
  ASSERT_TRUE(Submit(Named("running")).ok());
  gate_.WaitUntilReached();
  Request next = Named("queued");
  next.number = RequestNumber(2);
  std::shared_ptr<Recording> recording;
  ASSERT_TRUE(Submit(std::move(next), &recording).ok());
  engine_->Cancel("queued", RequestNumber(1), {});
  gate_.Open();
  EXPECT_EQ(recording->Wait(), absl::OkStatus());
}

TEST_F(EngineTest, CancelReachesARequestThatTheLoopHasNotSeen) {
  CreateGated();
  engine_->Start();
  std::shared_ptr<Recording> recording;
  ASSERT_TRUE(Submit(Named("running")).ok());
  gate_.WaitUntilReached();
  ASSERT_TRUE(Submit(Named("queued"), &recording).ok());
  engine_->Cancel("queued", {}, {});
  gate_.Open();
  EXPECT_EQ(recording->Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(recording->num_outputs(), 0u);
}

TEST_F(EngineTest, RefusalsAreCountedByTheirReasonAndAllReasonsAreThereFromTheStart) {
  CreateGated({.max_num_seqs = 1, .max_waiting_requests = 1});
  for (const char* reason : {"invalid", "too_long", "too_slow", "queue_full", "id_in_use", "draining"}) {
    EXPECT_EQ(Refused(reason), 0) << reason;
  }
  engine_->Start();
  ASSERT_TRUE(Submit(Named("running")).ok());
  gate_.WaitUntilReached();
  ASSERT_TRUE(Submit(Named("waiting")).ok());
  EXPECT_FALSE(Submit(Named("full")).ok());
  EXPECT_FALSE(Submit(Named("running")).ok());
  EXPECT_FALSE(Submit(Named("no tokens", 0)).ok());
  EXPECT_FALSE(Submit(Greedy(std::vector<int32_t>(400, 1), 1)).ok());
  engine_->CountRefusal(absl::InvalidArgumentError("what a door found"));
  gate_.Open();
  engine_->ShutDown(absl::InfiniteFuture());
  EXPECT_FALSE(Submit(Named("late")).ok());
  EXPECT_EQ(Refused("queue_full"), 1);
  EXPECT_EQ(Refused("id_in_use"), 1);
  EXPECT_EQ(Refused("invalid"), 2);
  EXPECT_EQ(Refused("too_long"), 1);
  EXPECT_EQ(Refused("draining"), 1);
}

TEST_F(EngineTest, DrainLetsRequestsFinishAndRefusesNewOnes) {
  CreateGated();
  engine_->Start();
  std::shared_ptr<Recording> recording;
  ASSERT_TRUE(Submit(Named("a", 50), &recording).ok());
  gate_.WaitUntilReached();
  std::thread drain([this] { engine_->ShutDown(absl::InfiniteFuture()); });
  while (Submit(Named("probe")).code() != absl::StatusCode::kUnavailable) {
  }
  gate_.Open();
  drain.join();
  EXPECT_TRUE(recording->Wait().ok());
  EXPECT_THAT(recording->tokens(), SizeIs(50));
  engine_->ShutDown(absl::InfinitePast());  // a second time does nothing
}

TEST_F(EngineTest, DrainEndsWhatIsLeftAtItsDeadline) {
  CreateGated({.max_num_seqs = 1});
  engine_->Start();
  std::shared_ptr<Recording> running, waiting;
  ASSERT_TRUE(Submit(Named("running", 390), &running).ok());
  ASSERT_TRUE(Submit(Named("waiting", 390), &waiting).ok());
  gate_.WaitUntilReached();
  std::thread drain([this] { engine_->ShutDown(absl::InfinitePast()); });
  while (Submit(Named("probe")).code() != absl::StatusCode::kUnavailable) {
  }
  gate_.Open();
  drain.join();
  EXPECT_TRUE(running->Wait().ok());
  EXPECT_EQ(running->output().finish, FinishReason::kCancelled);
  EXPECT_EQ(waiting->Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine_->Load().kv_blocks_used, 0);
}

TEST_F(EngineTest, AnEngineThatNeverStartedStillAnswers) {
  Create();
  std::shared_ptr<Recording> recording;
  ASSERT_TRUE(Submit(Named("a"), &recording).ok());
  engine_.reset();
  EXPECT_EQ(recording->Wait().code(), absl::StatusCode::kUnavailable);
}

TEST_F(EngineTest, ManyThreadsSubmitAndCancel) {
  Create({.kv_cache_bytes = 40 * kLongModel.layout().block_bytes(), .max_num_seqs = 6, .max_waiting_requests = 10000});
  engine_->Start();
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0, cancelled = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t, &wrong, &cancelled] {
      std::mt19937 rng(t);
      for (int i = 0; i < 40; ++i) {
        Request request = Greedy(RandomTokens(rng, 1 + rng() % 50, kLongModel.vocab_size), 1 + rng() % 30);
        request.request_id = std::to_string(t) + "-" + std::to_string(i);
        const Request asked = request;
        auto recording = std::make_shared<Recording>();
        if (!engine_->Submit(std::move(request), std::make_unique<RecordingSink>(recording)).ok()) ++wrong;
        if (rng() % 3 == 0) engine_->Cancel(asked.request_id, asked.number, {});
        const absl::Status status = recording->Wait();
        cancelled += status.code() == absl::StatusCode::kCancelled;
        if (status.ok()) wrong += recording->tokens() != FakeGreedy(kLongModel, asked.prompt, *asked.max_tokens);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(cancelled, 0);
  const EngineLoad load = engine_->Load();
  EXPECT_EQ(load.kv_blocks_used, 0);
  EXPECT_EQ(load.kv_blocks_free + load.kv_blocks_cached, load.kv_blocks_total);
  EXPECT_EQ(load.running_requests + load.waiting_requests, 0);
}

TEST_F(EngineTest, AnIdleEngineUsesNoCpu) {
  Create();
  engine_->Start();
  std::shared_ptr<Recording> recording;
  ASSERT_TRUE(Submit(Greedy({1, 2}, 3), &recording).ok());
  EXPECT_TRUE(recording->Wait().ok());
  EXPECT_LT(fakes::IdleCpuShare(), 0.01);
}

}  // namespace
}  // namespace swiftcache::engine::exec
