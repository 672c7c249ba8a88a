// SPDX-License-Identifier: Apache-2.0
// A StepLoop over the fake model, stepped by the test's own thread, with every invariant checked after every step.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/metrics/metrics.h"
#include "engine/exec/engine_metrics.h"
#include "engine/exec/request_check.h"
#include "engine/exec/step_loop.h"
#include "tests/engine/exec/recording_sink.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_model.h"
#include "tests/fakes/late_kv_memory.h"

namespace swiftcache::engine::exec {

inline const FakeModelOptions kSmallModel = {.vocab_size = 40, .block_tokens = 4};

struct HarnessOptions {
  FakeModelOptions model = {.block_tokens = 4};
  int64_t num_blocks = 1000;
  EngineOptions engine = {};
};

class LoopHarness : private LoopObserver {
 public:
  explicit LoopHarness(const HarnessOptions& options = {})
      : block_tokens_(options.model.block_tokens),
        limits_{options.model.vocab_size,
                std::min(options.model.max_context_tokens, options.num_blocks * block_tokens_)},
        metrics_(registry_, {block_tokens_, options.num_blocks}) {
    EngineOptions engine = options.engine;
    engine.block_tokens = block_tokens_;
    const int64_t block_bytes = options.model.layout().block_bytes();
    loop_ = std::make_unique<StepLoop>(
        engine, options.model.layout(), std::make_unique<FakeModel>(options.model),
        MakeLateKvMemory({.bytes = options.num_blocks * block_bytes, .block_bytes = block_bytes}, &queue_,
                         options.model.space),
        std::nullopt, clock_, &metrics_, static_cast<LoopObserver*>(this));
  }

  std::shared_ptr<Recording> Add(Request request) {
    const absl::Status status = CheckRequest(request, limits_);
    EXPECT_TRUE(status.ok()) << status;
    if (request.request_id.empty()) request.request_id = "r" + std::to_string(next_id_++);
    auto recording = std::make_shared<Recording>();
    const int64_t max_total_tokens = MaxTotalTokens(request, limits_);
    loop_->Accept(std::make_unique<LiveRequest>(std::move(request), std::make_unique<RecordingSink>(recording),
                                                clock_.Now(), max_total_tokens));
    return recording;
  }

  void Step() {
    loop_->Step();
    Check();
  }
  void Cancel(const std::string& id, RequestNumber number = {}, std::optional<int32_t> index = {}) {
    loop_->Cancel(id, number, index);
    Check();
  }
  void RunAll() {
    while (loop_->has_work() && !::testing::Test::HasFatalFailure()) Step();
    ExpectNothingHeld();
  }
  void ExpectNothingHeld() const {
    EXPECT_EQ(load().kv_blocks_used, 0);
    EXPECT_EQ(load().kv_blocks_free + load().kv_blocks_cached, load().kv_blocks_total);
    EXPECT_EQ(load().running_requests + load().waiting_requests, 0);
  }
  void Check() const {
    const absl::Status status = loop_->CheckInvariants();
    ASSERT_TRUE(status.ok()) << status;
  }

  StepLoop& loop() { return *loop_; }
  EngineLoad load() const { return load_; }
  FakeClock& clock() { return clock_; }
  std::string Scrape() const { return registry_.Serialize(); }
  const std::vector<std::string>& ended() const { return ended_; }

 private:
  void OnStarted(const LiveRequest&) override {}
  void OnEnded(const LiveRequest& request) override { ended_.push_back(request.request.request_id); }
  void OnLoad(const EngineLoad& load) override {
    load_ = load;
    metrics_.SetLoad(load);
  }
  void Deliver(OutboundBatch batch) override { CallSinks(std::move(batch), &metrics_); }
  void OnDeviceLost(const absl::Status&) override {}

  const int64_t block_tokens_;
  const RequestLimits limits_;
  FakeClock clock_;
  Metrics registry_;
  EngineMetrics metrics_;
  EngineLoad load_;
  std::vector<std::string> ended_;
  int64_t next_id_ = 0;
  LateQueue queue_{{}};
  std::unique_ptr<StepLoop> loop_;
};

inline std::vector<int32_t> RandomTokens(std::mt19937& rng, int64_t count, int64_t vocab_size) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % vocab_size);
  return tokens;
}

/// The same tokens for the same seed.
inline std::vector<int32_t> RandomTokens(unsigned seed, int64_t count, int64_t vocab_size) {
  std::mt19937 rng(seed);
  return RandomTokens(rng, count, vocab_size);
}

/// A greedy request for exactly `max_tokens`.
inline Request Greedy(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

}  // namespace swiftcache::engine::exec
