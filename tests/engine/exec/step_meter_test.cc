// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/step_meter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "tests/engine/exec/loop_harness.h"
#include "tests/fakes/fake_transport.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int64_t kBlockTokens = 4;
const kv::LeaseId kLease(7);

// The value of a line of a scrape; -1 where there is none.
double ValueOf(const std::string& scrape, const std::string& name) {
  const std::string text = "\n" + scrape;
  const size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

double Phase(const std::string& scrape, const std::string& phase) {
  return ValueOf(scrape, "swiftcache_prefill_phase_seconds_sum{phase=\"" + phase + "\"}");
}

// Every step takes 10 ms by the loop's clock.
class SlowSteps {
 public:
  explicit SlowSteps(HarnessOptions options) : harness_(WithSteps(std::move(options))) {}
  LoopHarness& harness() { return harness_; }

 private:
  HarnessOptions WithSteps(HarnessOptions options) {
    options.model.on_step = [this](const FakeStep&) {
      harness_.clock().Advance(absl::Milliseconds(10));
      return absl::OkStatus();
    };
    return options;
  }
  LoopHarness harness_;
};

// Slots and what is withheld hold no request's KV.
TEST(EngineMetricsTest, ACacheIsFullWhereRequestsHoldAllThatTheyMay) {
  Metrics registry;
  EngineMetrics metrics(registry, {.block_tokens = kBlockTokens, .num_blocks = 20});
  metrics.SetLoad({.kv_blocks_total = 20, .kv_blocks_used = 12, .kv_blocks_withheld = 3, .kv_blocks_slots = 5});
  EXPECT_EQ(ValueOf(registry.Serialize(), "vllm:kv_cache_usage_perc"), 1);
  EXPECT_EQ(ValueOf(registry.Serialize(), "swiftcache_kv_blocks{state=\"slots\"}"), 5);
}

TEST(EngineMetricsTest, ACacheHasRoomInWhatItLeasesAndInWhatItLends) {
  Metrics registry;
  EngineMetrics metrics(registry, {.block_tokens = kBlockTokens, .num_blocks = 20});
  metrics.SetLoad({.kv_blocks_total = 20,
                   .kv_blocks_used = 20,
                   .kv_blocks_leased_in = 20,
                   .kv_blocks_leased_in_used = 15,
                   .kv_blocks_leased_in_held = 10});
  EXPECT_EQ(ValueOf(registry.Serialize(), "vllm:kv_cache_usage_perc"), 0.75);
  metrics.SetLoad({.kv_blocks_total = 20, .kv_blocks_used = 5, .kv_blocks_leased_out = 15});
  EXPECT_EQ(ValueOf(registry.Serialize(), "vllm:kv_cache_usage_perc"), 0.25);
}

TEST(StepMeterTest, APrefillsTimeIsItsStepsAndTheRestIsTheQueue) {
  HarnessOptions options;
  options.engine.max_num_seqs = 1;
  options.engine.max_num_batched_tokens = 8;
  SlowSteps slow(options);
  std::mt19937 rng(1);
  (void)slow.harness().Add(Greedy(RandomTokens(rng, 20, 64), 2));  // three steps to its first token, one to its end
  (void)slow.harness().Add(Greedy(RandomTokens(rng, 8, 64), 1));   // waits for four, and takes one
  slow.harness().RunAll();
  const std::string scrape = slow.harness().Scrape();
  EXPECT_EQ(ValueOf(scrape, "swiftcache_prefill_phase_seconds_count{phase=\"execute\"}"), 2);
  EXPECT_NEAR(Phase(scrape, "execute"), 0.03 + 0.01, 1e-9);
  EXPECT_NEAR(Phase(scrape, "queue"), 0.04, 1e-9);
  EXPECT_NEAR(Phase(scrape, "load"), 0, 1e-9);
  EXPECT_NEAR(Phase(scrape, "store"), 0, 1e-9);
  EXPECT_NEAR(ValueOf(scrape, "swiftcache_time_to_first_token_seconds_sum"), 0.08, 1e-9);
  EXPECT_EQ(ValueOf(scrape, "swiftcache_kv_stall_seconds_count"), 0) << "nothing was streamed";
}

// A step of one chunk that streams a block of a lease; the load takes 3 ms, none of them hidden: two layers,
// and the next step's first one.
class StreamedStepTest : public testing::Test {
 protected:
  StreamedStepTest()
      : layout_{.num_layers = 2,
                .num_kv_heads = 1,
                .head_dim = 4,
                .block_tokens = kBlockTokens,
                .dtype = backend::KvDtype::kBf16},
        arena_(64 * layout_.block_bytes()),
        streamer_(layout_, transport_.space.Of(arena_.data()), &transport_, &clock_),
        metrics_(registry_, {kBlockTokens, 64}),
        meter_(clock_, &metrics_, &transport_, &streamer_),
        request_({.prompt = {1, 2, 3}}, nullptr, clock_.Now(), /*max_total_tokens=*/0) {
    transport_.AddLease(kLease, layout_.block_bytes(), kv::Epoch(1));
    const int32_t slots[] = {0, 1, 2, 3};
    streamer_.SetSlots(slots);
    continuation_ = request_.Begin(/*block_tokens=*/1);
    plan_.chunks = {{.sequence = continuation_, .num_tokens = 3, .samples = true}};
  }

  // `streams`: reads the lease, in a step of 10 ms and the stall.
  void Step(bool streams) {
    meter_.Begin();
    streamer_.Begin();
    if (streams) {
      EXPECT_TRUE(streamer_.Add(kv::Filling(9), kLease, 0).has_value());
    }
    streamer_.Start({});
    transport_.on_await = [this] { clock_.Advance(absl::Milliseconds(1)); };
    for (int64_t layer = 0; layer < 2; ++layer) {
      streamer_.Arrived(layer).Wait();
      streamer_.Release(layer, {});
      clock_.Advance(absl::Milliseconds(5));
    }
    EXPECT_TRUE(streamer_.End().empty());
    transport::TransportStats stats = transport_.stats();
    stats.load_time += streams ? absl::Milliseconds(3) : absl::ZeroDuration();
    stats.store_time += absl::Milliseconds(4);
    transport_.SetStats(stats);
    meter_.Computed(plan_, {.in_place_bytes = 100});
  }

  const backend::KvLayout layout_;
  FakeClock clock_;
  std::vector<std::byte> arena_;
  transport::FakeTransport transport_;
  LayerStreamer streamer_;
  Metrics registry_;
  EngineMetrics metrics_;
  StepMeter meter_;
  LiveRequest request_;
  Continuation* continuation_;
  sched::StepPlan plan_;
};

TEST_F(StreamedStepTest, LoadsAndStoresAreWhatTheTransportTookAndTheStallIsNoExecution) {
  clock_.Advance(absl::Milliseconds(6));  // the queue
  Step(true);
  clock_.Advance(absl::Milliseconds(1));  // sampling
  continuation_->first_token_time = clock_.Now();
  meter_.FirstToken(*continuation_);
  const std::string scrape = registry_.Serialize();
  EXPECT_NEAR(Phase(scrape, "queue"), 0.006, 1e-9);
  EXPECT_NEAR(Phase(scrape, "execute"), 0.011, 1e-9);
  EXPECT_NEAR(Phase(scrape, "load"), 0.003, 1e-9);
  EXPECT_NEAR(Phase(scrape, "store"), 0.004, 1e-9);
  EXPECT_NEAR(ValueOf(scrape, "swiftcache_kv_stall_seconds_sum"), 0.003, 1e-9);
  EXPECT_EQ(ValueOf(scrape, "swiftcache_kv_read_in_place_bytes_total"), 100);
}

TEST_F(StreamedStepTest, TimeBetweenItsStepsIsQueueToo) {
  clock_.Advance(absl::Milliseconds(6));
  Step(false);
  clock_.Advance(absl::Milliseconds(30));  // steps of others
  Step(false);
  continuation_->first_token_time = clock_.Now();
  meter_.FirstToken(*continuation_);
  EXPECT_NEAR(Phase(registry_.Serialize(), "queue"), 0.036, 1e-9);
  EXPECT_NEAR(Phase(registry_.Serialize(), "execute"), 0.020, 1e-9);
}

TEST_F(StreamedStepTest, AStepThatStreamsNothingIsNoStallOfZero) {
  Step(true);
  Step(false);
  EXPECT_EQ(ValueOf(registry_.Serialize(), "swiftcache_kv_stall_seconds_count"), 1);
}

TEST_F(StreamedStepTest, WhatMovesAfterTheFirstTokenIsNotChargedToThePrefill) {
  Step(true);
  continuation_->first_token_time = clock_.Now();
  meter_.FirstToken(*continuation_);
  Step(true);
  const std::string scrape = registry_.Serialize();
  EXPECT_EQ(ValueOf(scrape, "swiftcache_prefill_phase_seconds_count{phase=\"load\"}"), 1);
  EXPECT_NEAR(absl::ToDoubleSeconds(continuation_->prefill.load), 0.003, 1e-9);
}

TEST_F(StreamedStepTest, AStepThatIsCutShortIsOneStepWithAllItsTime) {
  const auto step = [&](bool cut_short, bool goes_on) {
    meter_.Begin();
    streamer_.Begin();
    clock_.Advance(absl::Milliseconds(10));
    meter_.Computed(plan_, {.cut_short = cut_short, .goes_on = goes_on});
  };
  step(/*cut_short=*/true, /*goes_on=*/false);
  step(true, true);
  EXPECT_EQ(ValueOf(registry_.Serialize(), "swiftcache_step_seconds_count"), 0);
  step(false, true);
  step(true, false);
  step(false, false);  // anew
  const std::string scrape = registry_.Serialize();
  EXPECT_EQ(ValueOf(scrape, "swiftcache_steps_total"), 2);
  EXPECT_EQ(ValueOf(scrape, "swiftcache_steps_cut_total"), 3);
  EXPECT_EQ(ValueOf(scrape, "swiftcache_step_tokens_sum"), 2 * 3);
  EXPECT_EQ(ValueOf(scrape, "swiftcache_step_sequences_count"), 2);
  EXPECT_NEAR(ValueOf(scrape, "swiftcache_step_seconds_sum"), 0.03 + 0.01, 1e-9);
}

// A donor that decodes, ten milliseconds a step, eleven while a borrower is at its memory.
class DonorStepTest : public StreamedStepTest {
 protected:
  enum class Traffic { kNone, kStore, kRead, kOwnStore };
  void SetUp() override {
    continuation_->first_token_time = clock_.Now();
    plan_.chunks = {{.sequence = continuation_, .num_tokens = 1, .samples = true}};
  }
  void Decode(int steps, Traffic traffic, bool whole = true) {
    for (int i = 0; i < steps; ++i) {
      streamer_.Begin();
      meter_.Begin();
      transport::TransportStats stats = transport_.stats();
      if (traffic == Traffic::kStore) stats.received_bytes += 100;
      if (traffic == Traffic::kRead) stats.borrowers_read += 100;
      if (traffic == Traffic::kOwnStore) stats.stored_bytes += 100;
      transport_.SetStats(stats);
      clock_.Advance((traffic == Traffic::kNone ? 10 : 11) * tenth_of_a_step_);
      meter_.Computed(plan_, {.cut_short = !whole});
    }
  }
  double TrafficSeconds(const std::string& which) const {
    return ValueOf(registry_.Serialize(), "swiftcache_lease_traffic_" + which + "_seconds_total{phase=\"decode\"}");
  }
  double Ratio(const std::string& phase) {
    meter_.Publish();
    return ValueOf(registry_.Serialize(), "swiftcache_interference_ratio{phase=\"" + phase + "\"}");
  }
  bool HasRatio() {
    meter_.Publish();
    return absl::StrContains(registry_.Serialize(), "swiftcache_interference_ratio{");
  }
  double Comparisons() {
    meter_.Publish();
    return ValueOf(registry_.Serialize(), "swiftcache_interference_comparisons{phase=\"decode\"}");
  }

  absl::Duration tenth_of_a_step_ = absl::Milliseconds(1);
};

TEST_F(DonorStepTest, StoresAndReadsOfBorrowersAreTraffic) {
  for (const Traffic traffic : {Traffic::kStore, Traffic::kRead}) {
    Decode(300, Traffic::kNone);
    clock_.Advance(absl::Milliseconds(20));  // a new group
    Decode(300, traffic);
    clock_.Advance(absl::Milliseconds(20));
    Decode(1, Traffic::kNone);  // which closes the one before it
    EXPECT_NEAR(Ratio("decode"), 10.0 / 11, 1e-3);
    EXPECT_FALSE(absl::StrContains(registry_.Serialize(), "swiftcache_interference_ratio{phase=\"prefill\"}"))
        << "nothing was prefilled";
  }
}

TEST_F(DonorStepTest, WithoutTrafficThereIsNoRatio) {
  EXPECT_FALSE(HasRatio()) << "before the first step";
  Decode(500, Traffic::kNone);
  EXPECT_FALSE(HasRatio());
  EXPECT_EQ(Comparisons(), 0);
}

// Traffic comes when it comes, every fifth step is ten times as long as the others, and neither has to do with the
// other. The steps that see traffic are mostly long ones.
TEST_F(DonorStepTest, ThatLongStepsSeeMoreTrafficIsNoInterference) {
  for (unsigned seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    std::exponential_distribution<double> gap(20);  // a second
    absl::Time next_traffic = clock_.Now();
    for (int i = 0; i < 20000; ++i) {
      streamer_.Begin();
      meter_.Begin();
      clock_.Advance(absl::Microseconds(rng() % 5 == 0 ? 10000 : 950 + rng() % 100));
      transport::TransportStats stats = transport_.stats();
      for (; next_traffic < clock_.Now(); next_traffic += absl::Seconds(gap(rng))) stats.received_bytes += 100;
      transport_.SetStats(stats);
      meter_.Computed(plan_, {});
    }
    EXPECT_GT(Comparisons(), 500);
    EXPECT_NEAR(Ratio("decode"), 1, 0.03);
  }
}

TEST_F(DonorStepTest, StepsThatBorrowThemselvesOrAreCutShortSayNothing) {
  Decode(300, Traffic::kNone);
  Decode(300, Traffic::kOwnStore);
  Decode(300, Traffic::kRead, /*whole=*/false);
  EXPECT_EQ(Comparisons(), 0);
  EXPECT_FALSE(HasRatio());
}

// Sums of engines weigh each by its time, so the time of one whose steps are short must not shrink.
TEST_F(DonorStepTest, SecondsAreOfAllDecodesThoughFewOfTheShortOnesAreCompared) {
  for (const absl::Duration tenth : {absl::Milliseconds(1), absl::Microseconds(100), absl::Microseconds(20)}) {
    tenth_of_a_step_ = tenth;
    Decode(20000, Traffic::kNone);
    clock_.Advance(absl::Milliseconds(20));  // a new group
    const double actual = TrafficSeconds("step"), expected = TrafficSeconds("expected_step");
    Decode(20000, Traffic::kRead);
    clock_.Advance(absl::Milliseconds(20));
    Decode(1, Traffic::kNone);
    const double took = absl::ToDoubleSeconds(20000 * 11 * tenth);
    EXPECT_NEAR(TrafficSeconds("step") - actual, took, 0.01 * took) << tenth;
    EXPECT_NEAR(TrafficSeconds("expected_step") - expected, took * 10 / 11, 0.01 * took) << tenth;
  }
}

TEST_F(DonorStepTest, ScrapesBesideTheLoopFindARatioOrNone) {
  std::atomic<bool> stop = false;
  std::thread scraper([&] {
    while (!stop) {
      meter_.Publish();
      EXPECT_FALSE(absl::StrContains(registry_.Serialize(), "Nan"));
    }
  });
  for (int i = 0; i < 20; ++i) {
    Decode(100, i % 2 == 0 ? Traffic::kNone : Traffic::kRead);
    clock_.Advance(absl::Milliseconds(20));
  }
  stop = true;
  scraper.join();
  Decode(1, Traffic::kRead);
  clock_.Advance(absl::Milliseconds(20));
  Decode(1, Traffic::kNone);
  EXPECT_NEAR(Ratio("decode"), 10.0 / 11, 1e-3);
}

TEST_F(DonorStepTest, AnEngineThatHasBeenIdleShowsNoRatioOfYesterday) {
  Decode(300, Traffic::kNone);
  clock_.Advance(absl::Milliseconds(20));
  Decode(300, Traffic::kRead);
  clock_.Advance(absl::Milliseconds(20));
  Decode(1, Traffic::kNone);
  EXPECT_NEAR(Ratio("decode"), 10.0 / 11, 1e-3);
  clock_.Advance(absl::Minutes(11));  // and no step
  EXPECT_FALSE(HasRatio());
  EXPECT_EQ(Comparisons(), 0);
  EXPECT_FALSE(absl::StrContains(registry_.Serialize(), "Nan")) << registry_.Serialize();
}

}  // namespace
}  // namespace swiftcache::engine::exec
