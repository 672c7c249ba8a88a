// SPDX-License-Identifier: Apache-2.0
// Leases behind fast and slow links, as the transport has measured them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/exec/sharing.h"
#include "engine/kv/layer_stream.h"
#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kSlow = 7, kFast = 8;
constexpr int64_t kOutputTokens = 8;
constexpr unsigned kConversations = 6;

SharingOptions Measured(StreamMode stream = StreamMode::kAuto) {
  return {.num_blocks = 20, .stream = stream, .measures_links = true};
}

// Own memory has room for two of the conversations.
void Converse(SharingHarness& harness) {
  harness.Converse(kConversations, kOutputTokens);
  int64_t from_leases = 0;
  for (unsigned seed = 1; seed <= kConversations; ++seed) {
    std::vector<int32_t> prompt = harness.Prompt(seed);
    prompt.push_back(5);
    const auto recording = harness.Add(prompt, kOutputTokens);
    harness.RunAll();
    EXPECT_EQ(recording->tokens(), FakeGreedy(harness.model(), prompt, kOutputTokens)) << seed;
    from_leases += recording->output().usage->cached_donor_tokens;
  }
  EXPECT_GT(from_leases, 0);
}
std::string InPlace(const SharingHarness& harness) {
  const std::string text = harness.scrape(), name = "\nswiftcache_kv_read_in_place_bytes_total";
  const size_t at = text.find(name);
  return at == std::string::npos ? "" : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
}
bool OwnMemoryIsWhole(const SharingHarness& harness) {
  const EngineLoad load = harness.load();
  return load.kv_blocks_free + load.kv_blocks_used + load.kv_blocks_cached == load.kv_blocks_total;
}

TEST(SlowLinkTest, OfTwoLeasesTheSlowOneIsStreamedAndTheOtherReadInPlace) {
  SharingHarness harness(Measured());
  harness.Borrow(kSlow, 24, /*slow_link=*/true);
  harness.Borrow(kFast, 24);
  Converse(harness);
  EXPECT_THAT(harness.transport().streamed(), ElementsAre(kv::LeaseId(kSlow)));
  EXPECT_THAT(InPlace(harness), Not(HasSubstr("} 0")));
}

TEST(SlowLinkTest, WhereEveryLinkIsFastNoOwnMemoryBecomesSlots) {
  SharingHarness harness(Measured());
  harness.Borrow(kSlow, 24);
  harness.Borrow(kFast, 24);
  Converse(harness);
  EXPECT_THAT(harness.transport().streamed(), IsEmpty());
  EXPECT_TRUE(OwnMemoryIsWhole(harness));
}

TEST(SlowLinkTest, SlotsAreOfTheSlowLeasesAloneAndGoWithThem) {
  SharingHarness harness(Measured());
  harness.Borrow(kFast, 24);
  harness.Borrow(kSlow, 4, /*slow_link=*/true);
  harness.Converse(kConversations, kOutputTokens);
  const EngineLoad load = harness.load();
  const int64_t slots = load.kv_blocks_total - load.kv_blocks_free - load.kv_blocks_used - load.kv_blocks_cached;
  EXPECT_EQ(load.kv_blocks_slots, slots);
  EXPECT_EQ(slots, kv::StreamBlocksFor(harness.load().kv_blocks_total, 4, harness.model().num_layers));
  harness.coordinator().OnRevoked(kv::LeaseId(kSlow), absl::Milliseconds(50));
  ASSERT_TRUE(harness.PumpUntil([&] { return harness.load().kv_blocks_leased_in == 24; }));
  EXPECT_TRUE(OwnMemoryIsWhole(harness));
}

TEST(SlowLinkTest, WhoSaysHowLeasesAreReadIsNotOverruled) {
  for (const StreamMode stream : {StreamMode::kInPlace, StreamMode::kLsc}) {
    SharingHarness harness(Measured(stream));
    harness.Borrow(kSlow, 24, /*slow_link=*/true);
    harness.Borrow(kFast, 24);
    Converse(harness);
    EXPECT_EQ(harness.transport().streamed().size(), stream == StreamMode::kInPlace ? 0u : 2u);
  }
}

}  // namespace
}  // namespace swiftcache::engine::exec
