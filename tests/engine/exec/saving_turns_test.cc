// SPDX-License-Identifier: Apache-2.0
// Who waits while blocks of leases that are wanted back are saved: for a spill, or for a step to begin.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {
namespace {

constexpr absl::Duration kRevokeEach = absl::Milliseconds(10), kStoreTakes = absl::Milliseconds(11);
constexpr int64_t kSmallLease = 3, kManyLeases = 200;

class SavingTurnsTest : public testing::Test {
 protected:
  // The first conversation's prompt lies in two leases, which others can take over, and is expected to be asked for
  // again.
  SavingTurnsTest() {
    for (const int64_t id : {1, 2}) harness_.Borrow(id, kSmallLease);
    harness_.Converse(2, 8);
    std::vector<int32_t> again = harness_.Prompt(1);
    again.push_back(5);
    (void)harness_.Add(again, 2);
    harness_.RunAll();
    for (int64_t id = 3; id <= kManyLeases; ++id) harness_.Borrow(id, kSmallLease);
  }
  // One that holds something, and whose blocks go to another.
  void RevokeNext() {
    const int64_t id = holding_.front();
    holding_.pop_front();
    harness_.coordinator().OnRevoked(kv::LeaseId(id), absl::Milliseconds(50));
    harness_.AwaitCoordinator();
    ASSERT_TRUE(harness_.heard().WaitFor(absl::StrCat("Drain ", id)));
    Turn();
    const auto stores = harness_.transport().stores();
    begun_.resize(stores.size(), harness_.clock().Now());
    ASSERT_FALSE(stores.empty()) << "lease " << id << " held nothing";
    const int64_t to = stores.back().lease.value();
    if (holding_.empty() || holding_.back() != to) holding_.push_back(to);
  }
  void Turn() {
    harness_.Pump();
    if (!harness_.loop().Step()) harness_.loop().ServeBetweenSteps();
  }
  void Millisecond() {
    harness_.clock().Advance(absl::Milliseconds(1));
    harness_.AwaitCoordinator();
    begun_.resize(harness_.transport().stores().size(), harness_.clock().Now());
    const auto landed = std::upper_bound(begun_.begin(), begun_.end(), harness_.clock().Now() - kStoreTakes);
    harness_.LandStores(landed - begun_.begin());
    if (harness_.loop().has_work()) Turn();
  }

  SharingHarness harness_{{.num_blocks = 16}};
  std::deque<int64_t> holding_ = {1, 2};
  std::vector<absl::Time> begun_;  // stores
};

// Of one lease blocks are always on their way out. The prompt fits into own memory, where what is idle has to make way.
TEST_F(SavingTurnsTest, ASpillThatIsWaitedForBeginsHoweverManyLeasesFollowEachOther) {
  begun_.resize(harness_.transport().stores().size(), harness_.clock().Now());
  RevokeNext();
  const std::vector<int32_t> prompt = RandomTokens(9, 12 * 4, harness_.model().vocab_size);
  const auto recording = harness_.Add(prompt, 8);
  for (int64_t ms = 1; ms <= 500 && !recording->done(); ++ms) {
    if (ms % 10 == 9) {
      ASSERT_NO_FATAL_FAILURE(RevokeNext());
    }
    Millisecond();
  }
  ASSERT_TRUE(recording->done()) << "ten times the deadline of a revocation";
  EXPECT_EQ(recording->tokens(), FakeGreedy(harness_.model(), prompt, 8));
}

// The one that it was held back for was cancelled, and that was long ago.
TEST_F(SavingTurnsTest, AStepIsHeldBackWhateverAnotherWasHeldBackBefore) {
  for (int i = 0; i < 2; ++i) {
    RevokeNext();
    (void)harness_.Add(harness_.Prompt(20 + i), 8);
    EXPECT_FALSE(harness_.loop().Step()) << i << ": blocks are being saved";
    harness_.loop().Cancel(absl::StrCat("r", 3 + i), {});
    harness_.LandStores();
    harness_.loop().ServeBetweenSteps();
    harness_.clock().Advance(absl::Seconds(10));
  }
}

}  // namespace
}  // namespace swiftcache::engine::exec
