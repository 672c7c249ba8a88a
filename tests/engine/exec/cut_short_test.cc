// SPDX-License-Identifier: Apache-2.0
// Steps that end early for leases that are wanted back, and those that do not.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/exec/cut_short_fixture.h"

namespace swiftcache::engine::exec {
namespace {

// A quarter of the time until then is a step's (Urgency::kStepDivisor), the rest is for what drains.
TEST_F(CutShortTest, AStepThatWouldOutlastTheRevocationOfALeaseThatItReadsIsCutAtTheNextLayer) {
  const auto reader = StartReader();
  EXPECT_EQ(LayersRun(absl::Milliseconds(2), [&] { Revoke(absl::Milliseconds(60)); }), 3);
  EXPECT_EQ(reader->tokens().size(), 1) << "nothing of it is sampled";
  harness_.RunAll();
  ExpectRight(*reader, reader_prompt_);
  EXPECT_EQ(harness_.transport().log().Count("Abandon 7"), 0) << "it was given back in time";
}

TEST_F(CutShortTest, NorDoesItWaitForTheNextLayersAttention) {
  const auto reader = StartReader();
  EXPECT_EQ(LayersRun(absl::Milliseconds(2), 2, absl::Milliseconds(60)), 3);
  EXPECT_EQ(reader->tokens().size(), 1);
  harness_.RunAll();
  ExpectRight(*reader, reader_prompt_);
}

TEST_F(CutShortTest, AStepWhoseLastProductsAreUnderWayIsNotCut) {
  const auto reader = StartReader();
  EXPECT_EQ(LayersRun(absl::Milliseconds(30), kDeepLayers - 1, absl::Milliseconds(1)), kDeepLayers);
  EXPECT_EQ(reader->tokens().size(), 2);
  harness_.RunAll();
  ExpectRight(*reader, reader_prompt_);
}

TEST_F(CutShortTest, AStepThatEndsInTimeIsNotCut) {
  const auto reader = StartReader();
  EXPECT_EQ(LayersRun(absl::Milliseconds(2), [&] { Revoke(absl::Milliseconds(100)); }), kDeepLayers);
  EXPECT_EQ(reader->tokens().size(), 2);
  harness_.RunAll();
  ExpectRight(*reader, reader_prompt_);
}

TEST_F(CutShortTest, AStepThatIsNearlyDoneIsNotCut) {
  const auto reader = StartReader();
  EXPECT_EQ(LayersRun(
                absl::Milliseconds(30), [&] { Revoke(absl::Milliseconds(200)); }, /*after=*/9),
            kDeepLayers);
  EXPECT_EQ(reader->tokens().size(), 2);
  harness_.RunAll();
  ExpectRight(*reader, reader_prompt_);
}

TEST_F(CutShortTest, TheThirdStepInARowThatBeginsAnewRunsToItsEnd) {
  const auto reader = StartReader();
  RevokeBeforeEachStep();
  const auto nothing = [] {};
  for (int i = 0; i < 2; ++i) (void)harness_.Add({5, 6, 7, i}, kTokens);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(LayersRun(absl::Milliseconds(2), nothing), i < 2 ? 1 : kDeepLayers) << i;
    EXPECT_EQ(reader->tokens().size(), i < 2 ? 1 : 2) << i;
    harness_.loop().Cancel(absl::StrCat("r", 5 + i), {});  // so that the next step is another
  }
  harness_.RunAll();
  ExpectRight(*reader, reader_prompt_);
}

// Or a prompt all of whose steps are lost would have neither a token nor an error.
TEST_F(CutShortTest, WhatAStepLosesCountsAsComputedAgain) {
  const auto reader = StartReader();
  int64_t again = 0;
  harness_.on_ended = [&](const LiveRequest& request) { again = request.continuations.front()->again_tokens; };
  const auto lease_goes = [&] {
    harness_.transport().Fence(kv::LeaseId(kId));
    LoseDonor();
  };
  EXPECT_EQ(LayersRun(absl::Milliseconds(2), lease_goes), 3) << "nobody is left who would want its tokens";
  harness_.RunAll();
  ExpectRight(*reader, reader_prompt_);
  EXPECT_EQ(again, static_cast<int64_t>(reader_prompt_.size()) + 1) << "the prompt, and the step's token";
}

// So that it fits between two revocations. Nine runs are a step that was cut as often as may be.
TEST_F(CutShortTest, TheNextStepOnLeasesIsHalfAsLongAndTwiceAfterEachThatWasNotCut) {
  SharingHarness harness(
      {.model = {.num_layers = kDeepLayers, .block_tokens = 4}, .num_blocks = 100, .max_tokens_on_leases = 64});
  harness.Borrow(kId, 256);
  const std::vector<int32_t> prompt = RandomTokens(5, 1000, harness.model().vocab_size);
  const auto recording = harness.Add(prompt, kTokens);
  while (harness.load().kv_blocks_leased_in_used == 0) (void)RowsOfNextStep(harness);
  EXPECT_EQ(RowsOfNextStep(harness), 64);
  harness.coordinator().OnRevoked(kv::LeaseId(kId), absl::Milliseconds(1));
  ASSERT_TRUE(harness.heard().WaitFor("Drain 7"));
  harness.coordinator().step_reads().Handled(kv::LeaseId(kId));  // as if each step met another revocation
  harness.during_layer = [&](int64_t) { harness.clock().Advance(absl::Milliseconds(2)); };
  for (const int64_t rows : {64, 32, 16, 16}) {
    for (int run = 0; run < 9; ++run) EXPECT_EQ(RowsOfNextStep(harness), rows) << run;
  }
  harness.during_layer = nullptr;
  harness.Borrow(kId + 1, 256);
  std::set<int64_t> rows;
  while (recording->tokens().empty()) rows.insert(RowsOfNextStep(harness));
  EXPECT_TRUE(rows.contains(32) && rows.contains(64));
  harness.RunAll();
  EXPECT_EQ(recording->tokens(), FakeGreedy(harness.model(), prompt, kTokens));
}

// It is not for what they read that they are cut.
TEST_F(CutShortTest, StepsOnLeasesAreNotShorterForALeaseThatTheyDoNotRead) {
  SharingHarness harness(
      {.model = {.num_layers = kDeepLayers, .block_tokens = 4}, .num_blocks = 60, .max_tokens_on_leases = 32});
  harness.Borrow(kId, 12);
  for (int i = 0; i < 2; ++i) harness.Converse(9, kTokens);
  ASSERT_EQ(harness.load().kv_blocks_leased_in_used, 12) << "there is no room for what comes now";
  harness.Borrow(kId + 1, 256);
  const std::vector<int32_t> prompt = RandomTokens(5, 1000, harness.model().vocab_size);
  const auto recording = harness.Add(prompt, kTokens);
  while (harness.load().kv_blocks_leased_in_used < 40) (void)RowsOfNextStep(harness);
  EXPECT_EQ(RowsOfNextStep(harness), 32);
  int64_t layers = 0;
  harness.during_layer = [&](int64_t layer) {
    harness.clock().Advance(absl::Milliseconds(2));
    if (++layers != 3) return;
    harness.coordinator().OnRevoked(kv::LeaseId(kId), absl::Milliseconds(50));
    ASSERT_TRUE(harness.heard().WaitFor("Drain 7"));
  };
  EXPECT_EQ(RowsOfNextStep(harness), 32);
  EXPECT_EQ(layers, 3) << "it is cut";
  harness.during_layer = nullptr;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(RowsOfNextStep(harness), 32) << i;
  harness.RunAll();
  EXPECT_EQ(recording->tokens(), FakeGreedy(harness.model(), prompt, kTokens));
}

TEST_F(CutShortTest, ALeaseThatTheStepReadsIsNotGivenBackBeforeItsEnd) {
  const auto reader = StartReader();
  int64_t released = -1;
  (void)LayersRun(absl::Milliseconds(1), [&] {
    Revoke(absl::Milliseconds(40));
    harness_.clock().Advance(absl::Milliseconds(30));
    for (int i = 0; i < 2; ++i) harness_.AwaitCoordinator();
    released = harness_.transport().log().Count("SendRelease 7");
  });
  EXPECT_EQ(released, 0);
  harness_.RunAll();
  ExpectRight(*reader, reader_prompt_);
}

TEST_F(CutShortTest, AStepThatReadsNoLeaseIsNotCutForARevocation) {
  const auto other = harness_.Add(harness_.Prompt(9), kTokens);
  EXPECT_EQ(LayersRun(absl::Milliseconds(200), [&] { RevokeAndAwaitRelease(); }), kDeepLayers);
  EXPECT_EQ(other->tokens().size(), 1);
  harness_.RunAll();
  ExpectRight(*other, harness_.Prompt(9));
}

// Prompts find what lies in the lease, and there is another to which it can go.
class CutShortForOthersTest : public CutShortTest {
 protected:
  static constexpr int64_t kElsewhere = 8;
  explicit CutShortForOthersTest(LateQueue* device = nullptr, StreamMode stream = StreamMode::kInPlace)
      : CutShortTest(device, stream) {
    harness_.Borrow(kElsewhere, 64);
  }
  void AwaitEndOfOneLease() {
    EXPECT_TRUE(harness_.PumpUntil([&] {
      harness_.loop().ServeBetweenSteps();
      return harness_.load().kv_blocks_leased_in == 64;
    }));
  }
  // Of all talks, once nothing is left of the lease.
  int64_t CachedTokens() {
    AwaitEndOfOneLease();
    int64_t cached = 0;
    for (unsigned seed = 1; seed <= kTalks; ++seed) {
      const auto recording = harness_.Add(harness_.Prompt(seed), kTokens);
      harness_.RunAll();
      ExpectRight(*recording, harness_.Prompt(seed));
      cached += recording->output().usage->cached_donor_tokens + recording->output().usage->cached_local_tokens;
    }
    return cached;
  }
  // Of a token of a prompt.
  void LearnPace(absl::Duration token_time) {
    constexpr int64_t kPromptTokens = 40;
    (void)harness_.Add(RandomTokens(8, kPromptTokens, harness_.model().vocab_size), kTokens);
    (void)LayersRun(token_time * kPromptTokens / kDeepLayers, [] {});
    harness_.RunAll();
  }
  // For a lease with one talk, of which there is less than it computes.
  void ExpectLongStepIsNotCut(absl::Duration layer_time) {
    harness_.Converse(1, kTokens);
    const auto other = harness_.Add(long_prompt_, kTokens);
    EXPECT_EQ(LayersRun(layer_time, [&] { RevokeAndAwaitRelease(); }), kDeepLayers);
    EXPECT_LT(CachedTokens(), kAllCached);
    ExpectRight(*other, long_prompt_);
  }
  const std::vector<int32_t> long_prompt_ = RandomTokens(9, 64, harness_.model().vocab_size);
  static constexpr int64_t kTalks = 4, kAllCached = kTalks * 20;  // as many as CutShortTest has
};

TEST_F(CutShortForOthersTest, AStepIsCutForALeaseInWhichPromptsFindMoreThanItComputes) {
  harness_.Converse(kTalks, kTokens);
  const auto other = harness_.Add({5, 6, 7}, kTokens);
  EXPECT_EQ(LayersRun(absl::Milliseconds(2), [&] { Revoke(absl::Milliseconds(50)); }), 3);
  EXPECT_TRUE(other->tokens().empty());
  EXPECT_EQ(CachedTokens(), kAllCached);
  EXPECT_EQ(harness_.transport().log().Count("Abandon 7"), 0) << "it was given back in time";
  ExpectRight(*other, {5, 6, 7});
}

TEST_F(CutShortForOthersTest, NoStepBeginsWhileThatIsSaved) {
  harness_.Converse(kTalks, kTokens);
  const auto other = harness_.Add({5, 6, 7}, kTokens);
  Revoke(absl::Milliseconds(50));
  harness_.Pump();
  EXPECT_FALSE(harness_.loop().Step());
  EXPECT_EQ(harness_.loop().NextWakeup(), harness_.clock().Now() + absl::Milliseconds(25));
  harness_.clock().Advance(absl::Milliseconds(25));
  EXPECT_TRUE(harness_.loop().Step()) << "a donor that takes no stores keeps nobody waiting";
  EXPECT_EQ(CachedTokens(), kAllCached);
  ExpectRight(*other, {5, 6, 7});
}

TEST_F(CutShortForOthersTest, AStepThatGoesOnIsCutForWhateverIsWorthSaving) {
  LearnPace(absl::Milliseconds(1));
  harness_.Converse(1, kTokens);
  const auto other = harness_.Add(long_prompt_, kTokens);
  EXPECT_EQ(LayersRun(absl::Milliseconds(2), [&] { Revoke(absl::Milliseconds(50)); }), 3);
  EXPECT_EQ(FirstLayerOf([&] { harness_.RunAll(); }), 3) << "it goes on where it was cut";
  EXPECT_EQ(CachedTokens(), kAllCached);
  ExpectRight(*other, long_prompt_);
}

class CutShortWhileStreamingTest : public CutShortForOthersTest {
 protected:
  CutShortWhileStreamingTest() : CutShortForOthersTest(nullptr, StreamMode::kLsc) {}
  // Since the beginning.
  int64_t StreamedSlices() {
    return harness_.transport().stats().loaded_bytes / harness_.model().layout().slice_bytes();
  }
};

TEST_F(CutShortWhileStreamingTest, AStepGoesOnWithTheNextLayerFromWhereItsBlocksLieThen) {
  const auto reader = StartReader();
  EXPECT_EQ(LayersRun(absl::Milliseconds(2), [&] { Revoke(absl::Milliseconds(60)); }), 3);
  AwaitEndOfOneLease();
  const auto slices_of_a_step = [&] {
    const int64_t before = StreamedSlices();
    EXPECT_TRUE(harness_.loop().Step());
    return StreamedSlices() - before;
  };
  int64_t of_the_rest = 0;
  EXPECT_EQ(FirstLayerOf([&] { of_the_rest = slices_of_a_step(); }), 3);
  EXPECT_EQ(reader->tokens().size(), 2);
  const int64_t of_all = slices_of_a_step();  // and of the first layer once more
  EXPECT_GT(of_all, 0);
  EXPECT_EQ(of_the_rest * (kDeepLayers + 1), of_all * (kDeepLayers - 3));
  harness_.RunAll();
  ExpectRight(*reader, reader_prompt_);
}

// Talks fill the one lease, the reader's lies in the other. Of what the one holds only what the eighth has of the prompt that
// LearnPace asks is worth saving: less than the step computes.
TEST_F(CutShortWhileStreamingTest, AStepThatGoesOnIsCutForWhatItDoesNotRead) {
  LearnPace(absl::Milliseconds(1));
  for (unsigned seed = 5; seed <= 13; ++seed) {
    (void)harness_.Add(harness_.Prompt(seed), kTokens);
    harness_.RunAll();
  }
  const auto reader = StartReader(10);
  const std::vector<int32_t> other_prompt = RandomTokens(99, 64, harness_.model().vocab_size);
  const auto other = harness_.Add(other_prompt, kTokens);
  const int64_t before = StreamedSlices();
  EXPECT_EQ(LayersRun(absl::Milliseconds(2), [&] { Revoke(absl::Milliseconds(50)); }), 3);
  EXPECT_GT(StreamedSlices(), before) << "it streams";
  EXPECT_EQ(FirstLayerOf([&] { harness_.RunAll(); }), 3) << "it goes on where it was cut";
  ExpectRight(*reader, reader_prompt_);
  ExpectRight(*other, other_prompt);
}

// The loop would come to what is to be saved when it is too late.
TEST_F(CutShortForOthersTest, AStepOfLongLayersIsNotCutForLessThanItComputes) {
  LearnPace(absl::Milliseconds(20));
  ExpectLongStepIsNotCut(absl::Milliseconds(200));
}

struct Late {
  LateQueue device{{.pace = LateQueue::Pace::kLockStep}};
};
class CutShortOnALateDeviceTest : Late, public CutShortForOthersTest {
 protected:
  CutShortOnALateDeviceTest() : CutShortForOthersTest(&device) {}
};

TEST_F(CutShortOnALateDeviceTest, ItBeginsNoStepAnewForLessThanThatComputes) {
  LearnPace(absl::Milliseconds(1));
  ExpectLongStepIsNotCut(absl::Milliseconds(2));
}

TEST_F(CutShortForOthersTest, TheThirdStepInARowIsNotCutForIt) {
  harness_.Converse(kTalks, kTokens);
  const auto other = harness_.Add({5, 6, 7}, kTokens);
  for (int i = 0; i < 2; ++i) (void)harness_.Add({5, 6, 8, i}, kTokens);
  for (const int64_t id : {kId, kElsewhere}) {
    EXPECT_EQ(LayersRun(absl::Milliseconds(2), [&] { Revoke(absl::Milliseconds(50), id); }), 3);
    AwaitEndOfOneLease();
    harness_.Borrow(id + 2, 64);
    harness_.loop().Cancel(absl::StrCat("r", id == kId ? 9 : 10), {});  // so that the next step begins anew
  }
  EXPECT_EQ(LayersRun(absl::Milliseconds(2), [&] { RevokeAndAwaitRelease(kId + 2); }), kDeepLayers);
  EXPECT_EQ(other->tokens().size(), 1);
  EXPECT_LT(CachedTokens(), kAllCached);
  ExpectRight(*other, {5, 6, 7});
}

TEST_F(CutShortForOthersTest, AStepIsNotCutForWhatNobodyHasAskedForAgain) {
  const auto other = harness_.Add({5, 6, 7}, kTokens);
  EXPECT_EQ(LayersRun(absl::Milliseconds(200), [&] { RevokeAndAwaitRelease(); }), kDeepLayers);
  harness_.RunAll();
  ExpectRight(*other, {5, 6, 7});
}

// A donor that takes its time over a store would have the next lease's come too late as well.
TEST_F(CutShortForOthersTest, AStepIsNotCutWhereStoresDoNotFlow) {
  harness_.Converse(kTalks, kTokens);
  Revoke(absl::Milliseconds(50));
  harness_.Pump();
  AwaitEndOfOneLease();  // what prompts find lies elsewhere
  harness_.Borrow(kElsewhere + 1, 64);
  StartSpills();
  harness_.clock().Advance(absl::Milliseconds(13));
  const auto other = harness_.Add({5, 6, 7}, kTokens);
  EXPECT_EQ(LayersRun(absl::Milliseconds(2), [&] { RevokeAndAwaitRelease(kElsewhere); }), kDeepLayers);
  harness_.RunAll();
  ExpectRight(*other, {5, 6, 7});
}

// Leases of many donors, wanted back one after the other; what prompts find there has somewhere to go.
TEST_F(CutShortTest, RevocationsInARowHoldNoStepBackForLongerThanOne) {
  constexpr int64_t kFirst = 10, kNumLeases = 8;
  SharingHarness harness({.model = {.num_layers = kDeepLayers, .block_tokens = 4}, .num_blocks = 20});
  for (int64_t id = kFirst; id < kFirst + kNumLeases; ++id) harness.Borrow(id, 8);
  for (int i = 0; i < 2; ++i) harness.Converse(10, kTokens);
  harness.Borrow(kId, 64);
  const std::vector<int32_t> prompt{5, 6, 7};
  const auto other = harness.Add(prompt, kTokens);
  const absl::Time begin = harness.clock().Now();
  bool computes = false;
  for (int64_t id = kFirst; !computes && id < kFirst + kNumLeases; ++id) {
    harness.coordinator().OnRevoked(kv::LeaseId(id), absl::Milliseconds(50));
    ASSERT_TRUE(harness.heard().WaitFor(absl::StrCat("Drain ", id)));
    harness.Pump();
    computes = harness.loop().Step();
    if (computes) break;
    harness.clock().Advance(absl::Milliseconds(10));
    harness.LandStores();
  }
  EXPECT_TRUE(computes);
  EXPECT_EQ(harness.clock().Now() - begin, absl::Milliseconds(50));
  harness.RunAll();
  EXPECT_EQ(other->tokens(), FakeGreedy(harness.model(), prompt, kTokens));
}

TEST_F(CutShortTest, AStepBeginsWhileSpillsGoToALeaseThatIsWantedBack) {
  StartSpills();
  Revoke(absl::Milliseconds(50));
  harness_.Pump();
  const auto other = harness_.Add({5, 6, 7}, kTokens);
  EXPECT_TRUE(harness_.loop().Step());
  harness_.RunAll();
  ExpectRight(*other, {5, 6, 7});
}

TEST_F(CutShortTest, AStepIsNotCutForWhatHasNowhereToGo) {
  harness_.Converse(4, kTokens);  // prompts have found it
  const auto other = harness_.Add({5, 6, 7}, kTokens);
  EXPECT_EQ(LayersRun(absl::Milliseconds(2), [&] { RevokeAndAwaitRelease(); }), kDeepLayers);
  harness_.RunAll();
  ExpectRight(*other, {5, 6, 7});
}

// Its pages stay mapped until the step ends.
TEST_F(CutShortTest, ALongStepThatReadsNoLeaseIsCutForADonorThatIsGone) {
  const auto other = harness_.Add(harness_.Prompt(9), kTokens);
  absl::Time lost;
  EXPECT_EQ(LayersRun(absl::Milliseconds(200),
                      [&] {
                        lost = harness_.clock().Now();
                        LoseDonor();
                      }),
            3);
  EXPECT_TRUE(harness_.PumpUntil([&] { return harness_.transport().log().Count("Close 7") == 1; }));
  EXPECT_LT(harness_.clock().Now() - lost, absl::Seconds(1));
  harness_.RunAll();
  ExpectRight(*other, harness_.Prompt(9));
}

TEST_F(CutShortTest, AShortStepThatReadsNoLeaseIsNotCutForADonorThatIsGone) {
  const auto other = harness_.Add(harness_.Prompt(9), kTokens);
  EXPECT_EQ(LayersRun(absl::Milliseconds(20), [&] { LoseDonor(); }), kDeepLayers);
  EXPECT_EQ(other->tokens().size(), 1);
  harness_.RunAll();
  ExpectRight(*other, harness_.Prompt(9));
}

}  // namespace
}  // namespace swiftcache::engine::exec
