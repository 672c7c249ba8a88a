// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/decode_bound.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/exec/engine.h"
#include "tests/engine/exec/sharing_harness.h"
#include "tests/fakes/cpu.h"

namespace swiftcache::engine::exec {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using transport::LoadRate;

constexpr absl::Duration kMs = absl::Milliseconds(1);

// Its link takes `time` for a block.
void SetRate(transport::FakeTransport& transport, int64_t block_bytes, absl::Duration time) {
  transport::TransportStats stats;
  for (int64_t i = 0; i < LoadRate::kLeastLoads; ++i) {
    stats.load_rate.Note(LoadRate::kLeastBytes, time * (LoadRate::kLeastBytes / block_bytes));
  }
  transport.SetStats(stats);
}

// Ten own blocks of four tokens; a leased one takes a millisecond to be read.
class DecodeBoundTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBlockBytes = 1024;

  DecodeBoundTest() { SetRate(transport_, kBlockBytes, kMs); }
  DecodeBound Bound(absl::Duration max_tpot) const {
    return DecodeBound({.max_tpot = max_tpot,
                        .own_blocks = 10,
                        .block_tokens = 4,
                        .block_bytes = kBlockBytes,
                        .max_model_len_tokens = 101},
                       &transport_);
  }
  static absl::Status Ask(const DecodeBound& bound, int64_t prompt, std::optional<int64_t> max_tokens = std::nullopt) {
    Request request = Greedy(std::vector<int32_t>(prompt, 1), 1);
    request.max_tokens = max_tokens;
    return bound.Check(request);
  }

  transport::FakeTransport transport_;
};

TEST_F(DecodeBoundTest, IsWhatMustLieInLeasesOverTheRateOfTheLink) {
  const DecodeBound bound = Bound(absl::ZeroDuration());
  EXPECT_EQ(bound.OfLongest(/*own_blocks=*/10, /*leased_blocks=*/5), 5 * kMs);
  EXPECT_EQ(bound.OfLongest(10, 1000), 15 * kMs) << "101 tokens, and the KV of the last is not needed";
  EXPECT_EQ(bound.OfLongest(8, 1000), 17 * kMs);
  EXPECT_EQ(bound.OfLongest(25, 5), absl::ZeroDuration()) << "own memory holds all that there may be";
}

TEST_F(DecodeBoundTest, IsNoneWithoutLeasesOrARateOrATransport) {
  EXPECT_EQ(Bound(kMs).OfLongest(10, 0), std::nullopt);
  EXPECT_EQ(DecodeBound({.block_tokens = 4}, nullptr).OfLongest(10, 5), std::nullopt);
  transport_.SetStats({});
  EXPECT_EQ(Bound(kMs).OfLongest(10, 5), std::nullopt);
}

TEST_F(DecodeBoundTest, RefusesAPromptThatIsSlowerAndNothingElse) {
  const DecodeBound bound = Bound(5 * kMs);
  EXPECT_TRUE(Ask(bound, 60, 41).ok()) << "it may end before its output takes longer";
  const absl::Status refusal = Ask(bound, 61);
  EXPECT_EQ(refusal.code(), absl::StatusCode::kOutOfRange);
  for (const char* part : {"the prompt has 61 tokens", "own memory holds 40", "at least 6ms over fake", "at 1 MB/s",
                           "--max_tpot is 5ms", "shorten the prompt"}) {
    EXPECT_THAT(std::string(refusal.message()), HasSubstr(part));
  }
}

TEST_F(DecodeBoundTest, OneTokenTakesNoTimeBetweenTokens) {
  EXPECT_TRUE(Ask(Bound(5 * kMs), 100, 1).ok());
  EXPECT_FALSE(Ask(Bound(5 * kMs), 100, 2).ok());
}

TEST_F(DecodeBoundTest, WhatOwnMemoryHoldsIsNeverTooSlow) {
  const DecodeBound bound = Bound(absl::Nanoseconds(1));
  EXPECT_TRUE(Ask(bound, 40).ok());
  EXPECT_FALSE(Ask(bound, 41).ok());
}

TEST_F(DecodeBoundTest, NothingIsTooSlowWithoutALimitOrAKnownRate) {
  EXPECT_TRUE(Ask(Bound(absl::ZeroDuration()), 100).ok());
  transport_.SetStats({});
  EXPECT_TRUE(Ask(Bound(kMs), 100).ok());
}

TEST(DecodeBoundLoopTest, IsKnownWhileMemoryIsLeased) {
  SharingHarness harness({.num_blocks = 20});
  EXPECT_EQ(harness.load().decode_bound, std::nullopt);
  harness.Borrow(7, 64);
  EXPECT_EQ(harness.load().decode_bound, std::nullopt) << "nothing is known of the link";
  SetRate(harness.transport(), harness.block_bytes(), kMs);
  EXPECT_EQ(harness.load().decode_bound, 64 * kMs);
  harness.coordinator().OnDonorGone(kv::LeaseId(7));
  ASSERT_TRUE(harness.PumpUntil([&] { return harness.load().kv_blocks_leased_in == 0; }));
  EXPECT_EQ(harness.load().decode_bound, std::nullopt);
}

TEST(DecodeBoundLoopTest, TheGaugeIsAbsentWhereThereIsNone) {
  Metrics registry;
  EngineMetrics metrics(registry, {.block_tokens = 4, .num_blocks = 20, .transport = "fake"});
  const std::string gauge = "\nswiftcache_decode_bound_seconds{transport=\"fake\"} ";
  metrics.SetLoad({.kv_blocks_total = 20, .decode_bound = 64 * kMs});
  EXPECT_THAT(registry.Serialize(), HasSubstr(gauge + "0.064\n"));
  metrics.SetLoad({.kv_blocks_total = 20});
  EXPECT_THAT(registry.Serialize(), Not(HasSubstr(gauge)));
}

TEST(DecodeBoundEngineTest, TheEngineRefusesAtOnceAndCountsIt) {
  const FakeModelOptions model = {.block_tokens = 4};
  const int64_t block_bytes = model.layout().block_bytes();
  EngineOptions options{.kv_cache_bytes = 32 * block_bytes, .block_tokens = 4, .max_tpot = 5 * kMs, .share = true};
  FakeClock clock;
  Metrics metrics;
  transport::FakeTransport transport;
  SetRate(transport, block_bytes, kMs);
  auto fake = std::make_unique<FakeModel>(model);
  EngineMemory memory = CreateEngineMemory(options, fake->geometry(), Cpu()).value();
  const int64_t own_tokens = memory.num_blocks() * 4;
  coordinator::Coordinator coordinator({.instance_id = "me", .num_blocks = own_tokens / 4, .block_bytes = block_bytes},
                                       clock, metrics);
  const auto engine = Engine::Create(options, std::move(memory), std::move(fake),
                                     SharingDependencies{&transport, &coordinator}, clock, metrics);
  const auto submit = [&](const char* id, int64_t prompt) {
    Request request = Greedy(std::vector<int32_t>(prompt, 1), 2);
    request.request_id = id;
    return engine->Submit(std::move(request), std::make_unique<RecordingSink>(std::make_shared<Recording>()));
  };
  EXPECT_TRUE(submit("own", own_tokens).ok());
  EXPECT_TRUE(submit("in time", own_tokens + 20).ok());
  EXPECT_EQ(submit("too slow", own_tokens + 21).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(submit("too long", 4096).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(engine->Load().waiting_requests, 2);
  engine->Drain(absl::InfinitePast());
  EXPECT_EQ(submit("too late", own_tokens + 21).code(), absl::StatusCode::kUnavailable)
      << "another engine may serve it";
  EXPECT_THAT(metrics.Serialize(), HasSubstr("\nswiftcache_requests_refused_total{reason=\"too_slow\"} 1\n"));
  EXPECT_THAT(metrics.Serialize(), HasSubstr("\nswiftcache_requests_refused_total{reason=\"too_long\"} 1\n"));
}

}  // namespace
}  // namespace swiftcache::engine::exec
