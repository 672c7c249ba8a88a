// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/step_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/engine/exec/loop_harness.h"

namespace swiftcache::engine::exec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<int32_t> Prompt(int64_t length, unsigned seed = 1) {
  return RandomTokens(seed, length, kSmallModel.vocab_size);
}

Request Random(std::vector<int32_t> prompt, int64_t max_tokens, uint64_t seed) {
  Request request = Greedy(std::move(prompt), max_tokens);
  request.sampling.temperature = 1;
  request.sampling.top_p = 0.95f;
  request.sampling.seed = seed;
  return request;
}

TEST(StepLoopTest, MaxTokensEndsWithLength) {
  LoopHarness harness({.model = kSmallModel});
  const auto recording = harness.Add(Greedy(Prompt(9), 5));
  harness.RunAll();
  EXPECT_TRUE(recording->Wait().ok());
  EXPECT_THAT(recording->tokens(), SizeIs(5));
  EXPECT_EQ(recording->output().finish, FinishReason::kLength);
}

TEST(StepLoopTest, ATurnIsAStepWhileThereIsWorkAndThenWaitsForWord) {
  LoopHarness harness({.model = kSmallModel});
  EXPECT_EQ(harness.loop().Turn(), absl::InfiniteFuture());
  const auto recording = harness.Add(Greedy(Prompt(9), 2));
  EXPECT_EQ(harness.loop().Turn(), absl::InfinitePast());
  EXPECT_THAT(recording->tokens(), SizeIs(1));
  EXPECT_EQ(harness.loop().Turn(), absl::InfinitePast());
  EXPECT_TRUE(recording->Wait().ok());
  EXPECT_EQ(harness.loop().Turn(), absl::InfiniteFuture());
}

TEST(StepLoopTest, WithoutMaxTokensTheArenaIsTheLimit) {
  LoopHarness harness({.model = kSmallModel, .num_blocks = 10});
  Request request = Greedy(Prompt(9), 1);
  request.max_tokens.reset();
  const auto recording = harness.Add(request);
  harness.RunAll();
  EXPECT_THAT(recording->tokens(), SizeIs(31));
  EXPECT_EQ(recording->output().finish, FinishReason::kLength);
}

TEST(StepLoopTest, AStopIdEndsAndIsAmongTheTokens) {
  const std::vector<int32_t> expected = FakeGreedy(kSmallModel, Prompt(9), 20);
  LoopHarness harness({.model = kSmallModel});
  Request request = Greedy(Prompt(9), 20);
  request.stop_token_ids = {expected[6]};
  const auto recording = harness.Add(request);
  harness.RunAll();
  const auto first = std::find(expected.begin(), expected.end(), expected[6]);
  EXPECT_EQ(recording->tokens(), std::vector<int32_t>(expected.begin(), first + 1));
  EXPECT_EQ(recording->output().finish, FinishReason::kStop);
}

TEST(StepLoopTest, EosEndsUnlessItIsIgnored) {
  const std::vector<int32_t> expected = FakeGreedy(kSmallModel, Prompt(9), 20);
  HarnessOptions options{.model = kSmallModel};
  options.engine.eos_ids = {expected[0]};
  LoopHarness harness(options);
  Request request = Greedy(Prompt(9), 20);
  const auto ignored = harness.Add(request);
  request.ignore_eos = false;
  const auto ended = harness.Add(request);
  harness.RunAll();
  EXPECT_EQ(ignored->tokens(), expected);
  EXPECT_THAT(ended->tokens(), ElementsAre(expected[0]));
  EXPECT_EQ(ended->output().finish, FinishReason::kStop);
}

TEST(StepLoopTest, TheSameSeedGivesTheSameTokensWhateverElseRuns) {
  LoopHarness alone({.model = kSmallModel});
  const auto expected = alone.Add(Random(Prompt(30), 25, 4242));
  alone.RunAll();

  HarnessOptions small{.model = kSmallModel, .num_blocks = 34};
  small.engine.max_num_batched_tokens = 13;
  LoopHarness busy(small);
  std::vector<std::shared_ptr<Recording>> others;
  for (unsigned i = 0; i < 10; ++i) others.push_back(busy.Add(Random(Prompt(20 + i, i + 50), 40, i)));
  const auto again = busy.Add(Random(Prompt(30), 25, 4242));
  const auto other_seed = busy.Add(Random(Prompt(30), 25, 4243));
  busy.RunAll();
  EXPECT_GT(busy.load().preemptions_total, 0);
  EXPECT_EQ(again->tokens(), expected->tokens());
  EXPECT_NE(other_seed->tokens(), expected->tokens());
}

TEST(StepLoopTest, ContinuationsShareThePromptAndDiffer) {
  for (bool caching : {true, false}) {
    HarnessOptions options{.model = kSmallModel};
    options.engine.enable_prefix_caching = caching;
    LoopHarness harness(options);
    Request request = Random(Prompt(41), 12, 7);
    request.n = 5;
    const auto recording = harness.Add(request);
    harness.RunAll();
    EXPECT_TRUE(recording->Wait().ok());
    ASSERT_EQ(recording->num_outputs(), 5u);
    for (int32_t i = 0; i < 5; ++i) {
      EXPECT_THAT(recording->tokens(i), SizeIs(12));
      EXPECT_EQ(recording->output(i).usage->cached_local_tokens, i > 0 && caching ? 40 : 0) << i;
    }
    for (int32_t i = 1; i < 5; ++i) EXPECT_NE(recording->tokens(i), recording->tokens(0));
  }
}

TEST(StepLoopTest, ContinuationsAreTheSameWithAndWithoutCacheAndMemory) {
  std::vector<std::vector<std::vector<int32_t>>> outcomes;
  for (int64_t num_blocks : {1000, 20}) {
    for (bool caching : {true, false}) {
      HarnessOptions options{.model = kSmallModel, .num_blocks = num_blocks};
      options.engine.enable_prefix_caching = caching;
      LoopHarness harness(options);
      Request request = Random(Prompt(41), 12, 7);
      request.n = 6;
      const auto recording = harness.Add(request);
      harness.RunAll();
      auto& outcome = outcomes.emplace_back();
      for (int32_t i = 0; i < 6; ++i) outcome.push_back(recording->tokens(i));
    }
  }
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome, outcomes.front());
}

TEST(StepLoopTest, AFirstContinuationThatEndsAtOnceStillStartsItsSiblings) {
  LoopHarness harness({.model = kSmallModel});
  Request request = Greedy(Prompt(8), 1);
  request.n = 3;
  const auto recording = harness.Add(request);
  harness.RunAll();
  EXPECT_TRUE(recording->Wait().ok());
  EXPECT_EQ(recording->num_outputs(), 3u);
  EXPECT_EQ(recording->tokens(2), recording->tokens(0)) << "greedy";
}

TEST(StepLoopTest, SaltsShareNothing) {
  LoopHarness harness({.model = kSmallModel});
  const auto cached = [&harness](const std::string& salt) {
    Request request = Greedy(Prompt(33), 2);
    request.cache_salt = salt;
    const auto recording = harness.Add(request);
    harness.RunAll();
    return recording->output().usage->cached_local_tokens;
  };
  EXPECT_EQ(cached("a"), 0);
  EXPECT_EQ(cached("b"), 0);
  EXPECT_EQ(cached(""), 0);
  EXPECT_EQ(cached("a"), 32);
  EXPECT_EQ(cached("b"), 32);
  EXPECT_EQ(cached(""), 32);
}

TEST(StepLoopTest, AConversationFindsItsOwnOutput) {
  LoopHarness harness({.model = kSmallModel});
  const auto first = harness.Add(Greedy(Prompt(10), 8));
  harness.RunAll();
  std::vector<int32_t> next = Prompt(10);
  for (int32_t token : first->tokens()) next.push_back(token);
  next.push_back(3);
  const auto second = harness.Add(Greedy(next, 3));
  harness.RunAll();
  // 10 + 8 tokens, of which the last was never computed: 17 tokens are 4 full blocks.
  EXPECT_EQ(second->output().usage->cached_local_tokens, 16);
  EXPECT_EQ(second->tokens(), FakeGreedy(kSmallModel, next, 3));
}

TEST(StepLoopTest, UsageTellsTimesByTheClock) {
  HarnessOptions options{.model = kSmallModel};
  options.engine.max_num_seqs = 1;
  FakeClock* clock = nullptr;
  options.model.on_step = [&clock](const FakeStep&) {
    clock->Advance(absl::Milliseconds(10));
    return absl::OkStatus();
  };
  LoopHarness harness(options);
  clock = &harness.clock();
  (void)harness.Add(Greedy(Prompt(5), 3));
  const auto second = harness.Add(Greedy(Prompt(6), 3));
  harness.RunAll();
  const Usage usage = *second->output().usage;
  EXPECT_EQ(usage.queue_time, absl::Milliseconds(30));
  EXPECT_EQ(usage.time_to_first_token, absl::Milliseconds(40));
  EXPECT_EQ(usage.prompt_tokens, 6);
  EXPECT_EQ(usage.completion_tokens, 3);
}

TEST(StepLoopTest, LogprobsComeWithTheTokensAskedFor) {
  LoopHarness harness({.model = kSmallModel});
  Request request = Greedy(Prompt(9), 4);
  request.sampling.logprobs = 3;
  const auto with = harness.Add(request);
  const auto without = harness.Add(Greedy(Prompt(9), 4));
  harness.RunAll();
  ASSERT_THAT(with->output().logprobs, SizeIs(4));
  FakeOracle oracle(kSmallModel);
  std::vector<float> logits;
  for (int32_t token : Prompt(9)) logits = oracle.Next(token);
  double sum = 0;
  for (float x : logits) sum += std::exp(double{x});
  const TokenLogprob first = with->output().logprobs[0];
  EXPECT_EQ(first.token_id, with->tokens()[0]);
  EXPECT_NEAR(first.logprob, logits[first.token_id] - std::log(sum), 1e-5);
  EXPECT_THAT(first.top, SizeIs(3));
  EXPECT_EQ(first.top[0], std::make_pair(first.token_id, first.logprob));
  EXPECT_THAT(without->output().logprobs, SizeIs(0));
}

TEST(StepLoopTest, AFailingStepFailsItsRequestsAndNoOthers) {
  HarnessOptions options{.model = kSmallModel};
  options.engine.max_num_seqs = 2;
  options.model.on_step = [](const FakeStep& step) {
    return step.number == 3 ? absl::ResourceExhaustedError("scratch is gone") : absl::OkStatus();
  };
  LoopHarness harness(options);
  const auto first = harness.Add(Greedy(Prompt(5, 1), 10)), second = harness.Add(Greedy(Prompt(6, 2), 10));
  const auto waiting = harness.Add(Greedy(Prompt(7, 3), 10));
  harness.RunAll();
  for (const auto& failed : {first, second}) {
    const absl::Status status = failed->Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr("scratch is gone"));
    EXPECT_THAT(failed->tokens(), SizeIs(3));
  }
  EXPECT_TRUE(waiting->Wait().ok());
  EXPECT_EQ(waiting->tokens(), FakeGreedy(kSmallModel, Prompt(7, 3), 10));
}

TEST(StepLoopTest, KvOfAFailedStepIsNeverFoundByOthers) {
  HarnessOptions options{.model = kSmallModel};
  options.model.on_step = [](const FakeStep& step) {
    return step.number == 0 ? absl::InternalError("lost") : absl::OkStatus();
  };
  LoopHarness harness(options);
  (void)harness.Add(Greedy(Prompt(40), 2));
  harness.RunAll();
  EXPECT_EQ(harness.load().kv_blocks_cached, 0);
  const auto again = harness.Add(Greedy(Prompt(40), 2));
  harness.RunAll();
  EXPECT_EQ(again->output().usage->cached_local_tokens, 0);
  EXPECT_EQ(again->tokens(), FakeGreedy(kSmallModel, Prompt(40), 2));
}

TEST(StepLoopTest, ALostDeviceEndsEveryRequestAndFreesItsBlocks) {
  HarnessOptions options{.model = kSmallModel};
  options.engine.max_num_seqs = 1;
  options.engine.enable_prefix_caching = false;
  options.model.on_step = [](const FakeStep& step) {
    return step.number < 2 ? absl::OkStatus() : absl::DataLossError("the device fell off the bus");
  };
  LoopHarness harness(options);
  const auto running = harness.Add(Greedy(Prompt(5), 10)), waiting = harness.Add(Greedy(Prompt(6), 10));
  harness.RunAll();
  for (const auto& request : {running, waiting}) {
    EXPECT_TRUE(absl::IsUnavailable(request->Wait()));
    EXPECT_THAT(std::string(request->Wait().message()), testing::HasSubstr("fell off the bus"));
  }
  EXPECT_EQ(running->tokens().size(), 2u);
  EXPECT_EQ(harness.load().kv_blocks_used, 0);
}

TEST(StepLoopTest, ARowWithoutANumberFailsItsRequestAlone) {
  HarnessOptions options{.model = kSmallModel};
  options.model.on_logits = [](int64_t row, int64_t rows, std::span<float> logits) {
    if (rows > 1 && row == 0) std::fill(logits.begin(), logits.end(), std::numeric_limits<float>::quiet_NaN());
  };
  LoopHarness harness(options);
  Request request = Greedy(Prompt(5), 4);
  request.n = 2;
  const auto broken = harness.Add(request);
  const auto other = harness.Add(Greedy(Prompt(6), 4));
  harness.RunAll();
  EXPECT_EQ(broken->Wait().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(other->tokens(), FakeGreedy(kSmallModel, Prompt(6), 4));
}

TEST(StepLoopTest, CancelFreesTheBlocksOfRunningAndWaitingRequests) {
  HarnessOptions options{.model = kSmallModel};
  options.engine.max_num_seqs = 1;
  options.engine.enable_prefix_caching = false;
  LoopHarness harness(options);
  Request request = Greedy(Prompt(50), 50);
  request.request_id = "running";
  const auto running = harness.Add(request);
  request.request_id = "waiting";
  const auto waiting = harness.Add(request);
  harness.Step();
  EXPECT_GT(harness.load().kv_blocks_used, 0);
  EXPECT_EQ(harness.load().running_requests, 1);
  EXPECT_EQ(harness.load().waiting_requests, 1);
  harness.Cancel("waiting");
  harness.Cancel("unknown");
  harness.Cancel("running", RequestNumber(1));  // of an earlier request of that id
  EXPECT_EQ(waiting->Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(running->done());
  harness.Cancel("running");
  EXPECT_EQ(running->Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(harness.load().kv_blocks_free, harness.load().kv_blocks_total);
  EXPECT_FALSE(harness.loop().has_work());
  EXPECT_THAT(harness.ended(), ElementsAre("waiting", "running"));
}

TEST(StepLoopTest, EndAllTellsWhoHasATokenFromWhoHasNone) {
  HarnessOptions options{.model = kSmallModel};
  options.engine.max_num_seqs = 1;
  LoopHarness harness(options);
  Request request = Greedy(Prompt(5), 50);
  request.n = 3;  // one of them runs at a time
  const auto begun = harness.Add(request);
  const auto waiting = harness.Add(Greedy(Prompt(6), 50));
  for (int i = 0; i < 3; ++i) harness.Step();
  harness.loop().EndAll();
  EXPECT_TRUE(begun->Wait().ok());
  ASSERT_EQ(begun->num_outputs(), 3u);
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(begun->output(i).finish, FinishReason::kCancelled);
  EXPECT_EQ(waiting->Wait().code(), absl::StatusCode::kUnavailable);
  harness.ExpectNothingHeld();
}

TEST(StepLoopTest, EndAllSendsElsewhereWhatHasBegunAndHasNoToken) {
  HarnessOptions options{.model = kSmallModel};
  options.engine.max_num_batched_tokens = 4;
  LoopHarness harness(options);
  const auto prefilling = harness.Add(Greedy(Prompt(20), 50));
  harness.Step();
  ASSERT_EQ(harness.load().running_requests, 1);
  harness.loop().EndAll();
  EXPECT_EQ(prefilling->Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(prefilling->num_outputs(), 0u);
  harness.ExpectNothingHeld();
}

// A step takes a millisecond for each of its rows.
TEST(StepLoopTest, ARunningStreamHasItsTokensInTimeWhileALongPromptArrives) {
  LoopHarness* stepped = nullptr;
  std::vector<int64_t> rows;
  HarnessOptions options{.model = {.max_context_tokens = 2000, .block_tokens = 4}};
  options.engine.target_itl = absl::Milliseconds(40);
  options.model.on_step = [&](const FakeStep& step) {
    rows.push_back(step.num_rows);
    stepped->clock().Advance(absl::Milliseconds(1) * step.num_rows);
    return absl::OkStatus();
  };
  LoopHarness harness(options);
  stepped = &harness;
  (void)harness.Add(Greedy(Prompt(300), 100));
  harness.Step();
  EXPECT_EQ(rows.back(), 300) << "nobody waits for a token";
  harness.Step();
  (void)harness.Add(Greedy(Prompt(1000, 1), 1));
  rows.clear();
  harness.RunAll();
  EXPECT_EQ(*std::max_element(rows.begin(), rows.end()), 1 + 32) << "39 are rounded to 32";
}

TEST(StepLoopTest, LargerPriorityGoesFirstAndPreempts) {
  HarnessOptions options{.model = kSmallModel};
  options.engine.max_num_seqs = 1;
  LoopHarness harness(options);
  Request low = Greedy(Prompt(5, 1), 20), mid = Greedy(Prompt(6, 2), 5), high = Greedy(Prompt(7, 3), 5);
  low.request_id = "low", mid.request_id = "mid", high.request_id = "high";
  mid.priority = 1, high.priority = 2;
  const auto low_recording = harness.Add(low);
  for (int i = 0; i < 3; ++i) harness.Step();
  (void)harness.Add(mid);
  (void)harness.Add(high);
  harness.RunAll();
  EXPECT_THAT(harness.ended(), ElementsAre("high", "mid", "low"));
  EXPECT_EQ(harness.load().preemptions_total, 1);
  EXPECT_EQ(low_recording->tokens(), FakeGreedy(kSmallModel, low.prompt, 20)) << "preempted unnoticed";
}

TEST(StepLoopTest, MetricsAddUp) {
  HarnessOptions options{.model = kSmallModel};
  LoopHarness harness(options);
  (void)harness.Add(Greedy(Prompt(33), 4));
  harness.RunAll();
  (void)harness.Add(Greedy(Prompt(33), 4));
  harness.RunAll();
  const std::string scrape = "\n" + harness.Scrape();
  for (const char* line : {
           "swiftcache_time_to_first_token_seconds_count 2",
           "vllm:time_to_first_token_seconds_count 2",
           "swiftcache_inter_token_latency_seconds_count 6",
           "vllm:inter_token_latency_seconds_count 6",
           "swiftcache_request_queue_time_seconds_count 2",
           "vllm:request_queue_time_seconds_count 2",
           "swiftcache_e2e_request_latency_seconds_count 2",
           "swiftcache_steps_total 8",
           "swiftcache_step_seconds_count 8",
           "swiftcache_step_sequences_bucket{le=\"1\"} 8",
           "swiftcache_step_tokens_sum 40",
           "swiftcache_time_per_output_token_seconds_count 2",
           "swiftcache_request_prompt_tokens_sum 66",
           "swiftcache_request_generation_tokens_sum 8",
           "swiftcache_prompt_tokens_by_source_total{source=\"computed\"} 34",
           "swiftcache_prompt_tokens_by_source_total{source=\"local\"} 32",
           "swiftcache_sharing_tokens_total{effect=\"saved\"} 0",
           "vllm:prompt_tokens_total 66",
           "vllm:prefix_cache_queries_total 66",
           "vllm:prefix_cache_hits_total 32",
           "vllm:generation_tokens_total 8",
           "swiftcache_generation_tokens_total 8",
           "swiftcache_kv_blocks{state=\"free\"} 1000",
           "swiftcache_kv_blocks{state=\"used\"} 0",
           "swiftcache_kv_cached_blocks 9",
           "vllm:kv_cache_usage_perc 0",
           "swiftcache_preemptions_total{action=\"recompute\"} 0",
           "vllm:num_preemptions_total 0",
           "vllm:num_requests_running 0",
           "vllm:num_requests_waiting 0",
           "vllm:cache_config_info{block_size=\"4\",num_gpu_blocks=\"1000\"} 1",
           "swiftcache_requests_total{status=\"OK\"} 2",
           "swiftcache_requests_total{status=\"INTERNAL\"} 0",
       }) {
    EXPECT_TRUE(scrape.find(std::string("\n") + line + "\n") != std::string::npos) << line;
  }
}

}  // namespace
}  // namespace swiftcache::engine::exec
