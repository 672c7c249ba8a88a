// SPDX-License-Identifier: Apache-2.0
// Requests that own memory cannot hold, while what others lend comes and goes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int64_t kOwnBlocks = 16, kOwnTokens = kOwnBlocks * 4;

class StarvationTest : public testing::Test {
 protected:
  static std::vector<int32_t> Prompt(int64_t length) { return RandomTokens(1, length, 64); }
  // A round of the loop, as the engine does it.
  void Round() {
    harness_.Pump();
    harness_.loop().Turn();
    harness_.LandStores();
    ASSERT_TRUE(harness_.loop().CheckInvariants().ok()) << harness_.loop().CheckInvariants();
  }
  void Rounds(int64_t count) {
    for (int64_t i = 0; i < count; ++i) ASSERT_NO_FATAL_FAILURE(Round());
  }
  void LoseTheLease(int64_t id) {
    harness_.coordinator().OnDonorGone(kv::LeaseId(id));
    ASSERT_TRUE(harness_.PumpUntil([this] { return harness_.load().kv_blocks_leased_in == 0; }));
  }
  // What waits has been asked for, and the broker says what is to be had.
  void AnswerNeed(int64_t lendable_blocks) {
    harness_.clock().Advance(absl::Milliseconds(300));
    ASSERT_NO_FATAL_FAILURE(Rounds(2));
    harness_.AwaitCoordinator();
    harness_.coordinator().OnLeaseResponse(coordinator::LeaseResponse{
        .lendable_bytes = lendable_blocks * harness_.block_bytes(), .shortage = "nobody lends more"});
    harness_.AwaitCoordinator();
    ASSERT_NO_FATAL_FAILURE(Rounds(2));
  }
  // Before its patience ends. The first answer may be that of a request which was made before it waited.
  template <class Sink>
  void RefuseUntilDone(const Sink& answer) {
    for (int i = 0; i < 4 && !answer.done(); ++i) ASSERT_NO_FATAL_FAILURE(AnswerNeed(0));
  }
  void ExpectCounted(int64_t refused, int64_t cut) {
    for (const auto& [end, count] : {std::pair("refused", refused), std::pair("cut", cut)}) {
      EXPECT_THAT(harness_.scrape(), testing::HasSubstr(absl::StrCat("swiftcache_requests_starved_total{end=\"", end,
                                                                     "\"} ", count, "\n")));
    }
  }
  SharingHarness harness_{{.num_blocks = kOwnBlocks}};
};

TEST_F(StarvationTest, WhoOutgrewOwnMemoryHasPatienceFromWhenItsLeaseIsGone) {
  harness_.Borrow(7, 64);
  const auto wide = harness_.Add(Prompt(40), 100);
  ASSERT_NO_FATAL_FAILURE(Rounds(60));
  ASSERT_GT(40 + wide->tokens().size(), static_cast<size_t>(kOwnTokens));
  ASSERT_NO_FATAL_FAILURE(LoseTheLease(7));
  const auto narrow = harness_.Add(Prompt(10), 4);
  ASSERT_NO_FATAL_FAILURE(Rounds(10));
  ASSERT_TRUE(narrow->done());
  EXPECT_TRUE(narrow->Wait().ok()) << "it holds up nobody";
  ExpectCounted(/*refused=*/0, /*cut=*/0);
  EXPECT_EQ(harness_.load().waiting_requests, 1);

  harness_.clock().Advance(absl::Seconds(9));
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  EXPECT_FALSE(wide->done());
  const size_t before = wide->tokens().size();
  ASSERT_NO_FATAL_FAILURE(harness_.Borrow(8, 64));
  ASSERT_NO_FATAL_FAILURE(Rounds(20));
  EXPECT_GT(wide->tokens().size(), before) << "it goes on";
  harness_.clock().Advance(absl::Seconds(9));
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  ASSERT_NO_FATAL_FAILURE(LoseTheLease(8));
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  harness_.clock().Advance(absl::Seconds(9));
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  EXPECT_FALSE(wide->done()) << "what it waited before is made up for";
  harness_.clock().Advance(absl::Seconds(2));
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  ASSERT_TRUE(wide->done());
  EXPECT_EQ(wide->Wait().code(), absl::StatusCode::kOutOfRange);
  ExpectCounted(/*refused=*/1, /*cut=*/0);
  EXPECT_FALSE(harness_.loop().has_work());
}

// Its answer has what leases hold by then, and not what was known of them when it came.
TEST_F(StarvationTest, WithoutMaxTokensAnAnswerHasWhatComesLater) {
  const auto chat = harness_.Add(Prompt(80), std::nullopt);
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  ASSERT_EQ(chat->tokens().size(), 0u) << "own memory does not hold its prompt";
  ASSERT_NO_FATAL_FAILURE(harness_.Borrow(7, 64));
  ASSERT_NO_FATAL_FAILURE(Rounds(150));
  ASSERT_FALSE(chat->done());
  EXPECT_GT(chat->tokens().size(), 100u);
  harness_.clock().Advance(absl::Seconds(9));
  ASSERT_NO_FATAL_FAILURE(LoseTheLease(7));
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  EXPECT_FALSE(chat->done());
  harness_.clock().Advance(absl::Seconds(11));
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  ASSERT_TRUE(chat->done());
  EXPECT_TRUE(chat->Wait().ok()) << chat->Wait();
  EXPECT_EQ(chat->output().finish, FinishReason::kLength);
  ExpectCounted(/*refused=*/0, /*cut=*/1);
  const std::vector<int32_t> tokens = chat->tokens();
  EXPECT_EQ(tokens, FakeGreedy(harness_.model(), Prompt(80), static_cast<int64_t>(tokens.size())));
}

// Others give up for who waits what they merely cache: what the broker says to who does not is no answer to that.
TEST_F(StarvationTest, WithoutMaxTokensAnAnswerWaitsUntilItsNeedIsRefusedAndNoLonger) {
  const auto refuse = [this] {
    harness_.AwaitCoordinator();
    harness_.coordinator().OnLeaseResponse(coordinator::LeaseResponse{.shortage = "nobody lends"});
    harness_.AwaitCoordinator();
  };
  const auto chat = harness_.Add(Prompt(40), std::nullopt);
  ASSERT_NO_FATAL_FAILURE(Rounds(40));
  harness_.AwaitCoordinator();
  ASSERT_EQ(harness_.num_requests(), 1) << "while it was computed";
  refuse();
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  EXPECT_FALSE(chat->done());
  EXPECT_EQ(chat->tokens().size(), kOwnTokens + 1 - 40u) << "of the last one no KV is kept";
  harness_.clock().Advance(absl::Seconds(6));
  ASSERT_NO_FATAL_FAILURE(Rounds(1));
  harness_.AwaitCoordinator();
  ASSERT_EQ(harness_.num_requests(), 2);
  refuse();
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  ASSERT_TRUE(chat->done()) << "patience is 10 s";
  EXPECT_TRUE(chat->Wait().ok()) << chat->Wait();
  EXPECT_EQ(chat->output().finish, FinishReason::kLength);
}

// The broker counts no more as on its way what a donor has granted.
TEST_F(StarvationTest, WithoutMaxTokensAnAnswerDoesNotEndWhileItsLeaseIsBeingOpened) {
  const auto chat = harness_.Add(Prompt(40), std::nullopt);
  ASSERT_NO_FATAL_FAILURE(Rounds(40));
  ASSERT_NO_FATAL_FAILURE(AnswerNeed(/*lendable_blocks=*/64));
  ASSERT_NO_FATAL_FAILURE(harness_.Grant(7, 64));
  ASSERT_NO_FATAL_FAILURE(AnswerNeed(0));
  ASSERT_FALSE(chat->done());
  const std::string on_its_way = absl::StrCat("Lendable ", 64 * harness_.block_bytes(), ": nobody lends more");
  EXPECT_EQ(harness_.heard().Count(on_its_way), 2);
  const size_t before = chat->tokens().size();
  ASSERT_NO_FATAL_FAILURE(harness_.Borrow(7, 64));
  ASSERT_NO_FATAL_FAILURE(Rounds(20));
  EXPECT_GT(chat->tokens().size(), before);
}

TEST_F(StarvationTest, WithoutMaxTokensAnAnswerDoesNotEndByARefusalBeforeAnOffer) {
  harness_.Borrow(7, 64);
  const auto chat = harness_.Add(Prompt(40), std::nullopt);
  ASSERT_NO_FATAL_FAILURE(Rounds(60));
  ASSERT_NO_FATAL_FAILURE(AnswerNeed(0));
  ASSERT_NO_FATAL_FAILURE(LoseTheLease(7));
  ASSERT_NO_FATAL_FAILURE(AnswerNeed(0));
  ASSERT_FALSE(chat->done()) << "what was taken back may come again";
  ASSERT_NO_FATAL_FAILURE(AnswerNeed(64));
  harness_.clock().Advance(absl::Seconds(3));
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  ASSERT_FALSE(chat->done()) << "64 blocks are on their way";
  ASSERT_NO_FATAL_FAILURE(RefuseUntilDone(*chat));
  EXPECT_EQ(chat->output().finish, FinishReason::kLength) << "and are not any more";
}

TEST_F(StarvationTest, WithoutMaxTokensAnAnswerDoesNotEndWhileALeaseLeaves) {
  harness_.Borrow(7, 64);
  harness_.Borrow(8, 4);
  const auto chat = harness_.Add(Prompt(40), std::nullopt);
  ASSERT_NO_FATAL_FAILURE(Rounds(100));
  ASSERT_NO_FATAL_FAILURE(AnswerNeed(0));
  harness_.clock().Advance(absl::Seconds(1));
  harness_.coordinator().OnRevoked(kv::LeaseId(7), absl::Milliseconds(50));
  ASSERT_TRUE(harness_.heard().WaitFor("Drain 7"));
  harness_.Pump();
  for (int i = 0; i < 5; ++i) (void)harness_.loop().Turn();
  harness_.AwaitCoordinator();
  harness_.coordinator().OnLeaseResponse(coordinator::LeaseResponse{.shortage = "nobody lends"});
  harness_.AwaitCoordinator();
  harness_.Pump();
  for (int i = 0; i < 5; ++i) (void)harness_.loop().Turn();
  ASSERT_EQ(harness_.load().kv_blocks_leased_in, 68) << "stores out of the lease are under way";
  EXPECT_FALSE(chat->done());
  ASSERT_NO_FATAL_FAILURE(Rounds(5));
  ASSERT_EQ(harness_.load().kv_blocks_leased_in, 4);
  EXPECT_FALSE(chat->done()) << "it may come again";
  harness_.clock().Advance(absl::Seconds(3));
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  EXPECT_FALSE(chat->done()) << "that was before";
  ASSERT_NO_FATAL_FAILURE(RefuseUntilDone(*chat));
  EXPECT_EQ(chat->output().finish, FinishReason::kLength);
}

TEST_F(StarvationTest, WithoutMaxTokensOneOfSeveralEndsAlone) {
  const auto two = harness_.Add(Prompt(40), std::nullopt, "", /*n=*/2);
  ASSERT_NO_FATAL_FAILURE(Rounds(26));  // the first has all memory, and is to give way
  harness_.clock().Advance(absl::Seconds(6));
  ASSERT_NO_FATAL_FAILURE(Rounds(40));  // which the second has since
  harness_.clock().Advance(absl::Seconds(5));
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  ASSERT_FALSE(two->done());
  EXPECT_EQ(two->output(0).finish, FinishReason::kLength);
  EXPECT_EQ(two->output(1).finish, std::nullopt) << "it has not waited for so long";
  harness_.clock().Advance(absl::Seconds(6));
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  ASSERT_TRUE(two->done());
  EXPECT_TRUE(two->Wait().ok());
  EXPECT_EQ(two->output(1).finish, FinishReason::kLength);
}

TEST_F(StarvationTest, OfSeveralThatAreCutTogetherEachIsCounted) {
  const auto two = harness_.Add(Prompt(40), std::nullopt, "", /*n=*/2);
  ASSERT_NO_FATAL_FAILURE(Rounds(66));
  harness_.clock().Advance(absl::Seconds(11));
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  ASSERT_TRUE(two->done());
  for (const int32_t i : {0, 1}) EXPECT_EQ(two->output(i).finish, FinishReason::kLength);
  ExpectCounted(/*refused=*/0, /*cut=*/2);
}

TEST_F(StarvationTest, WhoWaitsForItsOwnMemoryAloneStandsStill) {
  harness_.LendAway(7, {4, 12});
  (void)harness_.Add(Prompt(40), 4);
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  const int64_t progress = harness_.loop().progress();
  for (int i = 0; i < 5; ++i) (void)harness_.loop().Turn();
  EXPECT_EQ(harness_.loop().progress(), progress);
}

TEST_F(StarvationTest, WithoutMaxTokensAPromptThatNobodyHoldsIsAnError) {
  const auto chat = harness_.Add(Prompt(80), std::nullopt);
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  harness_.clock().Advance(absl::Seconds(11));
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  ASSERT_TRUE(chat->done());
  EXPECT_EQ(chat->Wait().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(chat->Wait().message()),
              testing::HasSubstr("the prompt has 80 tokens; this engine's own memory holds 64 in all, with what others "
                                 "lend at present 64: shorten the prompt, or raise --kv_cache_bytes"));
}

TEST_F(StarvationTest, MaxTokensBeyondMemoryAreNamedAsTheyWereSentWithWhatFits) {
  const auto chat = std::make_shared<Recording>();
  Request request = Greedy(Prompt(40), 1'000'000);
  request.request_id = "chat";
  harness_.loop().Accept(std::make_unique<LiveRequest>(std::move(request), std::make_unique<RecordingSink>(chat),
                                                       harness_.clock().Now(), /*max_total_tokens=*/512));
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  harness_.clock().Advance(absl::Seconds(11));
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  ASSERT_TRUE(chat->done());
  EXPECT_THAT(std::string(chat->Wait().message()),
              testing::HasSubstr("the prompt has 40 tokens, and max_tokens is 1000000 (472 within the context of 512); "
                                 "this engine's own memory holds 64 in all, with what others lend at present 64: at "
                                 "most 25 fit now; leave max_tokens out, lower it, shorten the prompt, or raise"));
  const auto fits = harness_.Add(Prompt(40), 25);
  ASSERT_NO_FATAL_FAILURE(Rounds(40));
  ASSERT_TRUE(fits->done());
  EXPECT_EQ(fits->tokens().size(), 25u);
}

TEST_F(StarvationTest, WhoseWorkWaitsTakesItsNextTurnSoonThoughNobodySaysAnything) {
  (void)harness_.Add(Prompt(400), 10);
  (void)harness_.loop().Turn();
  const int64_t progress = harness_.loop().progress();
  EXPECT_EQ(harness_.loop().Turn(), harness_.clock().Now() + absl::Milliseconds(20));
  EXPECT_GT(harness_.loop().progress(), progress) << "it does not stand still";
}

// The broker could not be reached once.
TEST_F(StarvationTest, WhatIsParkedIsAskedForAgainWhileOthersRun) {
  (void)harness_.Add(Prompt(10), 50);
  (void)harness_.Add(Prompt(40), 400);
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  harness_.AwaitCoordinator();
  ASSERT_EQ(harness_.num_requests(), 1);
  harness_.coordinator().OnLeaseResponse(absl::UnavailableError("the broker is away"));
  harness_.AwaitCoordinator();
  harness_.clock().Advance(absl::Seconds(5));
  ASSERT_NO_FATAL_FAILURE(Rounds(5));
  harness_.AwaitCoordinator();
  EXPECT_EQ(harness_.num_requests(), 2);
}

TEST_F(StarvationTest, NewLeasesDoNotStartPatienceAnew) {
  harness_.Borrow(7, 64);
  const auto wide = harness_.Add(Prompt(40), 100);
  ASSERT_NO_FATAL_FAILURE(Rounds(60));
  ASSERT_NO_FATAL_FAILURE(LoseTheLease(7));
  absl::Duration starved;
  for (int64_t lease = 8; !wide->done(); ++lease) {
    ASSERT_LT(lease, 30) << "no end";
    ASSERT_NO_FATAL_FAILURE(Rounds(1));
    harness_.clock().Advance(absl::Seconds(2));
    starved += absl::Seconds(2);
    ASSERT_NO_FATAL_FAILURE(Rounds(1));
    if (wide->done()) break;
    ASSERT_NO_FATAL_FAILURE(harness_.Borrow(lease, 64));
    ASSERT_NO_FATAL_FAILURE(Rounds(1));
    harness_.clock().Advance(absl::Seconds(1));
    ASSERT_NO_FATAL_FAILURE(LoseTheLease(lease));
  }
  EXPECT_EQ(wide->Wait().code(), absl::StatusCode::kOutOfRange);
  EXPECT_LE(starved, absl::Seconds(2 * 10 + 2)) << "of each three seconds it makes up for one";
}

TEST_F(StarvationTest, WhatIsTakenBackTooOftenEndsWithAnErrorThatSaysSo) {
  const auto wide = harness_.Add(Prompt(400), 10);
  for (int64_t lease = 7; !wide->done(); ++lease) {
    ASSERT_LT(lease, 200) << "no end";
    ASSERT_NO_FATAL_FAILURE(harness_.Borrow(lease, 128));
    ASSERT_NO_FATAL_FAILURE(Rounds(10));
    if (wide->done()) break;
    ASSERT_NO_FATAL_FAILURE(LoseTheLease(lease));
    ASSERT_NO_FATAL_FAILURE(Rounds(1));
  }
  EXPECT_EQ(wide->Wait().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(wide->Wait().message()), testing::HasSubstr("tokens were computed again"));
  EXPECT_THAT(std::string(wide->Wait().message()), testing::HasSubstr("own memory holds 64"));
}

TEST_F(StarvationTest, WhatNothingCouldHoldIsParkedUntilALeaseComesOrPatienceEnds) {
  const auto larger = harness_.Add(Prompt(40), 400);
  const auto large = harness_.Add(Prompt(40), 60);
  EXPECT_TRUE(harness_.loop().has_work());
  EXPECT_EQ(harness_.load().waiting_requests, 2);
  ASSERT_NO_FATAL_FAILURE(Rounds(2));
  EXPECT_EQ(large->tokens().size(), 0u);
  harness_.clock().Advance(absl::Seconds(5));
  ASSERT_NO_FATAL_FAILURE(harness_.Borrow(7, 32));
  ASSERT_NO_FATAL_FAILURE(Rounds(100));
  ASSERT_TRUE(large->done());
  EXPECT_TRUE(large->Wait().ok()) << large->Wait();
  EXPECT_EQ(large->tokens(), FakeGreedy(harness_.model(), Prompt(40), 60));
  EXPECT_FALSE(larger->done());
  harness_.clock().Advance(absl::Seconds(6));
  harness_.loop().ServeBetweenSteps();
  ASSERT_TRUE(larger->done());
  EXPECT_EQ(larger->Wait().code(), absl::StatusCode::kOutOfRange);
  EXPECT_FALSE(harness_.loop().has_work());
}

}  // namespace
}  // namespace swiftcache::engine::exec
