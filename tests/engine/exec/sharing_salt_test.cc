// SPDX-License-Identifier: Apache-2.0
// Whose KV it is, wherever it lies: who brings the salt of a prompt finds what is cached of it, who brings another finds
// nothing.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {
namespace {

// Conversations that own memory has room for two of.
class SharingSaltTest : public testing::TestWithParam<StreamMode> {
 protected:
  static constexpr int64_t kNear = 7, kFar = 8;
  static constexpr int64_t kOutputTokens = 4;

  SharingSaltTest() : harness_({.num_blocks = 20, .stream = GetParam()}) {}

  // The same prompt for everybody.
  Usage Ask(const std::string& salt) {
    std::vector<int32_t> prompt = harness_.Prompt(1);
    prompt.push_back(5);
    const std::shared_ptr<Recording> recording = harness_.Add(prompt, kOutputTokens, salt);
    harness_.RunAll();
    EXPECT_EQ(recording->tokens(), FakeGreedy(harness_.model(), prompt, kOutputTokens)) << salt;
    return *recording->output().usage;
  }
  int64_t prompt_tokens() const { return static_cast<int64_t>(harness_.Prompt(1).size()); }

  // All of it is found, by whom it is for.
  Usage ExpectFoundByItsSalt() {
    const Usage mine = Ask("mine");
    EXPECT_EQ(mine.cached_local_tokens + mine.cached_donor_tokens, prompt_tokens());
    return mine;
  }
  void ExpectFoundByNobodyElse() {
    const Usage other = Ask(absl::StrCat("not mine ", ++strangers_));
    EXPECT_EQ(other.cached_local_tokens + other.cached_donor_tokens, 0);
  }
  // Until the prompt is not in own memory any more.
  void PushOut() {
    for (unsigned seed = 2; seed <= 4; ++seed) {
      (void)harness_.Add(harness_.Prompt(seed), kOutputTokens, absl::StrCat("neighbour ", ++neighbours_));
      harness_.RunAll();
    }
  }
  // Nothing idle is left in own memory, which is free again.
  void EmptyOwnMemory() {
    harness_.OfferAway(++loans_, {0, 20});
    ASSERT_TRUE(harness_.broker().log().WaitFor(absl::StrCat("GRANTED ", loans_)));
    harness_.coordinator().OnReleased(kv::LeaseId(loans_));
    ASSERT_TRUE(harness_.heard().WaitFor(absl::StrCat("TakeBack ", loans_)));
    harness_.Pump();
  }

  SharingHarness harness_;
  int strangers_ = 0, neighbours_ = 0;
  int64_t loans_ = 100;
};

INSTANTIATE_TEST_SUITE_P(BothWays, SharingSaltTest, testing::Values(StreamMode::kInPlace, StreamMode::kLsc),
                         [](const auto& info) { return info.param == StreamMode::kLsc ? "Streamed" : "InPlace"; });

TEST_P(SharingSaltTest, ItFollowsTheBlocksThroughEveryLease) {
  (void)Ask("mine");
  EXPECT_EQ(ExpectFoundByItsSalt().cached_donor_tokens, 0) << "it lies in own memory";
  ExpectFoundByNobodyElse();

  harness_.Borrow(kNear, 64);
  PushOut();
  EXPECT_GT(ExpectFoundByItsSalt().cached_donor_tokens, 0) << "it lies in a lease";
  ExpectFoundByNobodyElse();

  PushOut();
  harness_.Borrow(kFar, 128);
  harness_.coordinator().OnRevoked(kv::LeaseId(kNear), absl::Seconds(10));
  ASSERT_TRUE(harness_.PumpUntil([&] { return harness_.load().kv_blocks_leased_in == 128; }));
  EXPECT_GT(ExpectFoundByItsSalt().cached_donor_tokens, 0) << "it lies in another lease";
  ExpectFoundByNobodyElse();

  if (GetParam() == StreamMode::kInPlace) {  // else part of own memory is slots, and cannot be emptied
    PushOut();
    EmptyOwnMemory();
    EXPECT_EQ(ExpectFoundByItsSalt().cached_donor_tokens, prompt_tokens()) << "on its way home, since there is room";
    EXPECT_GT(ExpectFoundByItsSalt().cached_local_tokens, 0) << "it is at home again";
    ExpectFoundByNobodyElse();
  }

  harness_.transport().Fence(kv::LeaseId(kFar));
  harness_.coordinator().OnDonorGone(kv::LeaseId(kFar));
  ASSERT_TRUE(harness_.PumpUntil([&] { return harness_.load().kv_blocks_leased_in == 0; }));
  (void)Ask("mine");
  (void)ExpectFoundByItsSalt();  // as it was computed again
  ExpectFoundByNobodyElse();
}

}  // namespace
}  // namespace swiftcache::engine::exec
