// SPDX-License-Identifier: Apache-2.0
// Leases over a transport that maps nothing: what lies there can be had by loads and streams alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <vector>

#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int64_t kUnmappedLayers = 10, kAnswerTokens = 8;

// An engine whose first conversations lie in the leases of two donors.
class UnmappedTest : public testing::Test {
 protected:
  UnmappedTest()
      : harness_({.model = {.num_layers = kUnmappedLayers, .block_tokens = 4},
                  .num_blocks = 20,
                  .stream = StreamMode::kAuto,
                  .mapped = false}) {
    for (const int64_t id : {7, 8}) harness_.Borrow(id, 20);
    harness_.Converse(6, kAnswerTokens);
  }
  void Continue(unsigned seed) {
    std::vector<int32_t> prompt = harness_.Prompt(seed);
    prompt.push_back(5);
    const auto recording = harness_.Add(prompt, kAnswerTokens);
    harness_.RunAll();
    EXPECT_TRUE(recording->Wait().ok()) << recording->Wait();
    EXPECT_EQ(recording->tokens(), FakeGreedy(harness_.model(), prompt, kAnswerTokens)) << seed;
    donor_tokens_ += recording->output().usage->cached_donor_tokens;
  }
  // Once, in the midst of a step that streams: four layers are behind it.
  void InAStream(std::function<void()> happen) {
    harness_.during_layer = [this, happen = std::move(happen)](int64_t layer) {
      if (layer != 4 || happened_ || harness_.transport().streams_under_way() == 0) return;
      happened_ = true;
      happen();
    };
  }
  // Of each lease.
  void ForBoth(const std::function<void(kv::LeaseId)>& what) {
    for (const int64_t id : {7, 8}) what(kv::LeaseId(id));
  }
  void ContinueAll() {
    for (unsigned seed = 1; seed <= 6; ++seed) Continue(seed);
  }
  SharingHarness harness_;
  int64_t donor_tokens_ = 0;
  bool happened_ = false;
};

TEST(UnmappedLimitTest, NoMoreLiesInLeasesThanOneStreamMayHave) {
  SharingHarness harness({.model = {.num_layers = kUnmappedLayers, .block_tokens = 4},
                          .num_blocks = 20,
                          .stream = StreamMode::kAuto,
                          .mapped = false});
  harness.transport().most_streamed = 5;
  for (const int64_t id : {7, 8}) harness.Borrow(id, 20);
  harness.Converse(6, kAnswerTokens);
  EXPECT_EQ(harness.load().kv_blocks_leased_in_used, 5);
  EXPECT_EQ(harness.load().kv_blocks_slots, kv::StreamBlocksFor(20, 5, kUnmappedLayers));
  harness.AwaitCoordinator();
  EXPECT_EQ(harness.num_requests(), 0) << "no more could be used";
}

TEST(UnmappedLimitTest, AnAnswerWithoutMaxTokensEndsWhereOneStreamMayHaveNoMore) {
  SharingHarness harness({.model = {.num_layers = kUnmappedLayers, .block_tokens = 4},
                          .num_blocks = 20,
                          .stream = StreamMode::kAuto,
                          .mapped = false});
  harness.transport().most_streamed = 5;
  harness.Borrow(7, 20);
  const auto chat = harness.Add(harness.Prompt(1), std::nullopt);
  for (int rounds = 0; rounds < 500 && !chat->done(); ++rounds) {
    harness.Pump();
    harness.loop().Turn();
    harness.LandStores();
  }
  ASSERT_TRUE(chat->done()) << "patience is 10 s, and no time passes";
  EXPECT_EQ(chat->output().finish, FinishReason::kLength);
  const int64_t slots = kv::StreamBlocksFor(20, 5, kUnmappedLayers);
  EXPECT_GE(static_cast<int64_t>(24 + chat->tokens().size()), (20 - slots + 5) * 4) << "it had all there is";
}

TEST_F(UnmappedTest, ADonorIsToldOnceAStepWhatIsStreamedAndNeverALayer) {
  std::vector<std::shared_ptr<Recording>> going_on;
  for (const unsigned seed : {1u, 2u}) {
    std::vector<int32_t> prompt = harness_.Prompt(seed);
    prompt.push_back(5);
    going_on.push_back(harness_.Add(prompt, kAnswerTokens));
  }
  int64_t most = 0;
  while (harness_.loop().has_work()) {
    harness_.Pump();
    const int64_t told = harness_.transport().control_messages();
    (void)harness_.loop().Step();
    most = std::max(most, harness_.transport().control_messages() - told);
    harness_.LandStores();
    harness_.loop().ServeBetweenSteps();
  }
  for (const auto& recording : going_on) {
    EXPECT_TRUE(recording->Wait().ok());
    EXPECT_GT(recording->output().usage->cached_donor_tokens, 0);
  }
  EXPECT_GE(most, 1);
  EXPECT_LE(most, 2 * 2) << "two donors, each told of the step's stream and of the stores beside it";
}

TEST_F(UnmappedTest, ADonorThatFallsSilentInAStepCostsUntilItsLeaseIsGivenUp) {
  int silences = 0;
  harness_.transport().on_silence = [&](kv::LeaseId lease) {
    ++silences;
    harness_.coordinator().OnDonorGone(lease);
    EXPECT_TRUE(harness_.transport().log().WaitFor(absl::StrCat("Abandon ", lease.value())));
  };
  for (const int64_t id : {7, 8}) harness_.transport().Silence(kv::LeaseId(id));
  for (unsigned seed = 1; seed <= 6; ++seed) Continue(seed);
  EXPECT_GE(silences, 1);
  EXPECT_LE(silences, 2 * kUnmappedLayers) << "what is given up is not waited for again";
  EXPECT_LT(harness_.load().kv_blocks_leased_in, 40);
}

// Whatever else it says.
TEST_F(UnmappedTest, ADonorThatRenewsAndSendsNothingCostsTheReadersPatienceOnce) {
  std::vector<kv::LeaseId> waited_for;
  harness_.transport().on_silence = [&](kv::LeaseId lease) {
    waited_for.push_back(lease);
    harness_.clock().Advance(transport::Transport::kReadPatience);
    harness_.coordinator().OnRenewed(lease);
  };
  ForBoth([&](kv::LeaseId lease) { harness_.transport().Silence(lease); });
  ContinueAll();
  EXPECT_THAT(waited_for, testing::Contains(kv::LeaseId(7)));
  EXPECT_EQ(std::set(waited_for.begin(), waited_for.end()).size(), waited_for.size()) << "each once";
  for (const kv::LeaseId lease : waited_for) {
    EXPECT_TRUE(harness_.transport().log().WaitFor(absl::StrCat("Abandon ", lease.value())));
  }
  EXPECT_EQ(harness_.load().kv_blocks_leased_in, 40 - 20 * static_cast<int64_t>(waited_for.size()));
}

// Not even in the time that a drain has.
TEST_F(UnmappedTest, ADrainDoesNotAskAgainADonorThatSendsNothing) {
  int silences = 0;
  harness_.transport().on_silence = [&](kv::LeaseId) {
    ++silences;
    harness_.clock().Advance(absl::Microseconds(1));
  };
  ForBoth([&](kv::LeaseId lease) {
    harness_.transport().Silence(lease);
    harness_.coordinator().OnRevoked(lease, absl::Seconds(10));
    EXPECT_TRUE(harness_.heard().WaitFor(absl::StrCat("Drain ", lease.value())));
  });
  harness_.Pump();
  EXPECT_LE(silences, 2);
  ContinueAll();
  EXPECT_EQ(harness_.load().kv_blocks_leased_in, 0);
}

TEST_F(UnmappedTest, ADonorThatEndsInTheMidstOfAStreamIsAMiss) {
  InAStream([&] {
    ForBoth([&](kv::LeaseId lease) {
      harness_.transport().Silence(lease);
      harness_.coordinator().OnDonorGone(lease);
      EXPECT_TRUE(harness_.transport().log().WaitFor(absl::StrCat("Abandon ", lease.value())));
      EXPECT_EQ(harness_.transport().log().Count(absl::StrCat("Close ", lease.value())), 0) << "it is being streamed";
    });
  });
  ContinueAll();
  EXPECT_TRUE(happened_);
  ForBoth([&](kv::LeaseId lease) {
    EXPECT_TRUE(harness_.transport().log().WaitFor(absl::StrCat("Close ", lease.value())));
  });
  EXPECT_EQ(harness_.load().kv_blocks_leased_in, 0);
}

TEST_F(UnmappedTest, GarbageUnderAChangedWordIsComputedAgain) {
  InAStream([&] { ForBoth([&](kv::LeaseId lease) { harness_.transport().Fence(lease); }); });
  ContinueAll();
  EXPECT_TRUE(happened_);
  EXPECT_LT(harness_.load().kv_blocks_leased_in, 40);
}

// What came while the word had changed stays lost, whatever the word is from the next layer on.
TEST_F(UnmappedTest, AWordThatIsTheOldOneAgainVouchesForNothing) {
  bool fenced = false, shown = false;
  harness_.during_layer = [&](int64_t layer) {
    if (fenced && !shown) {
      shown = true;
      ForBoth([&](kv::LeaseId lease) { harness_.transport().ShowOldWord(lease); });
    } else if (layer == 4 && !fenced && harness_.transport().streams_under_way() > 0) {
      fenced = true;
      ForBoth([&](kv::LeaseId lease) { harness_.transport().Fence(lease); });
    }
  };
  ContinueAll();
  EXPECT_TRUE(shown);
}

// Bytes have no author: who reads what a donor wrote over its KV has tokens of that. Nobody else has.
TEST_F(UnmappedTest, GarbageUnderAnUnchangedWordSpoilsNobodyButItsReaders) {
  InAStream([&] { ForBoth([&](kv::LeaseId lease) { harness_.transport().Scribble(lease); }); });
  std::vector<std::shared_ptr<Recording>> readers, others;
  for (unsigned seed = 1; seed <= 6; ++seed) readers.push_back(harness_.Add(harness_.Prompt(seed), kAnswerTokens));
  for (unsigned seed = 11; seed <= 13; ++seed) others.push_back(harness_.Add(harness_.Prompt(seed), kAnswerTokens));
  harness_.RunAll();
  EXPECT_TRUE(happened_);
  for (const auto& reader : readers) {
    EXPECT_TRUE(reader->Wait().ok()) << reader->Wait();
    EXPECT_EQ(reader->tokens().size(), kAnswerTokens);
  }
  for (unsigned i = 0; i < others.size(); ++i) {
    EXPECT_TRUE(others[i]->Wait().ok()) << others[i]->Wait();
    EXPECT_EQ(others[i]->tokens(), FakeGreedy(harness_.model(), harness_.Prompt(11 + i), kAnswerTokens));
  }
}

TEST_F(UnmappedTest, AnswersThatNobodyAskedForChangeNothing) {
  coordinator::Coordinator& heard = harness_.coordinator();
  const int64_t leased_in = harness_.load().kv_blocks_leased_in;
  const kv::LeaseId unknown(99);
  const auto stores = harness_.transport().stores();
  ASSERT_FALSE(stores.empty());
  const auto lie = [&] {
    for (const int64_t ticket : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
      for (const absl::Status& status : {absl::OkStatus(), absl::UnavailableError("no")}) {
        heard.OnStored(transport::Ticket(ticket), status);
      }
    }
    for (const auto& store : stores) {  // all of them were answered
      heard.OnStored(store.ticket, absl::OkStatus());
      heard.OnStored(store.ticket, absl::UnavailableError("after all"));
    }
    heard.OnRenewed(unknown);
    heard.OnRevoked(unknown, absl::InfiniteDuration());
    heard.OnDonorGone(unknown);
    heard.OnOpened(unknown, absl::UnavailableError("no"));
    ForBoth([&](kv::LeaseId lease) { heard.OnOpened(lease, absl::UnavailableError("after all")); });
    ForBoth([&](kv::LeaseId lease) { heard.OnOpened(lease, transport::LeaseView()); });
  };
  lie();
  InAStream(lie);
  ContinueAll();
  EXPECT_TRUE(happened_);
  EXPECT_GT(donor_tokens_, 0);
  EXPECT_EQ(harness_.load().kv_blocks_leased_in, leased_in);
}

TEST_F(UnmappedTest, ARevocationWhoseTimeIsOverOrNeverEndsCostsTheLeaseAlone) {
  InAStream([&] {
    harness_.coordinator().OnRevoked(kv::LeaseId(7), -absl::InfiniteDuration());
    harness_.coordinator().OnRevoked(kv::LeaseId(8), absl::InfiniteDuration());
  });
  ContinueAll();
  EXPECT_TRUE(happened_);
  EXPECT_TRUE(harness_.PumpUntil([&] { return harness_.load().kv_blocks_leased_in == 0; }));
}

TEST_F(UnmappedTest, BlocksHaveSlotsBeforeTheyAreInLeases) {
  EXPECT_GT(harness_.load().kv_blocks_leased_in_used, 0);
  for (unsigned seed = 1; seed <= 6; ++seed) Continue(seed);
  EXPECT_GT(donor_tokens_, 0);
}

}  // namespace
}  // namespace swiftcache::engine::exec
