// SPDX-License-Identifier: Apache-2.0
// A prompt of seven times own memory while donors take their memory back, ten times a second and a hundred times, in
// virtual time: it ends with its tokens or with the one error, within the bound that Starvation states.
//
//   STORM_SEEDS=1000 engine_exec_storm_test
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "tests/engine/exec/sharing_harness.h"
#include "tests/fakes/environment.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int64_t kOwnBlocks = 16, kBlockTokens = 4, kPromptTokens = 7 * kOwnBlocks * kBlockTokens, kOutputTokens = 10;
constexpr int64_t kTokens = kPromptTokens + kOutputTokens;
constexpr int64_t kLeases = 10;  // each as large as own memory; some of them are always away
constexpr absl::Duration kTokenTime = absl::Milliseconds(8);  // so that the prompt takes as long as one of 7,000 does
constexpr absl::Duration kDeadline = absl::Milliseconds(50);
// Three steps in a row may compute the same: two that are cut short, and one that is not.
const absl::Duration kBound =
    EngineOptions().lease_patience + 2 * 3 * (sched::Scheduler::kMaxAgain + 1) * kTokens * kTokenTime;

struct StormResult {
  bool served = false;
  absl::Duration time;
  int64_t revoked = 0, fenced = 0, again = 0, losses = 0;
  int64_t held = 0;  // of those revoked: what was stored lay there
};

class StormWorld {
 public:
  StormWorld(uint64_t seed, absl::Duration between)
      : random_(seed),
        between_(between),
        harness_({.model = {.num_layers = 8, .block_tokens = kBlockTokens},
                  .num_blocks = kOwnBlocks,
                  .max_tokens_on_leases = 16}) {
    harness_.during_layer = [this](int64_t) { Pass(harness_.rows() * kTokenTime / harness_.model().num_layers); };
    harness_.on_ended = [this](const LiveRequest& request) {
      result_.again = request.continuations.front()->again_tokens;
      result_.losses = request.continuations.front()->losses;
    };
  }

  StormResult Run() {
    for (int64_t i = 0; i < kLeases; ++i) Lend();
    next_revocation_ = Now() + between_;
    const std::vector<int32_t> prompt = RandomTokens(random_(), kPromptTokens, harness_.model().vocab_size);
    const auto recording = harness_.Add(prompt, kOutputTokens);
    const absl::Time begin = Now();
    while (!recording->done() && Now() - begin < 2 * kBound && !testing::Test::HasFailure()) Round();
    result_.time = Now() - begin;
    EXPECT_TRUE(recording->done()) << "neither a token nor an error after " << result_.time;
    if (!recording->done()) return result_;
    const absl::Status status = recording->Wait();
    result_.served = status.ok();
    const auto produced = static_cast<int64_t>(recording->tokens().size());
    EXPECT_EQ(recording->tokens(), FakeGreedy(harness_.model(), prompt, produced));
    EXPECT_EQ(status.code(), status.ok() ? absl::StatusCode::kOk : absl::StatusCode::kOutOfRange) << status;
    EXPECT_TRUE(!status.ok() || produced == kOutputTokens);
    EXPECT_LE(result_.again, sched::Scheduler::kMaxAgain * kTokens + EngineOptions().max_num_batched_tokens);
    EXPECT_LE(result_.time, kBound);
    return result_;
  }

 private:
  struct Lent {
    bool revoked = false, released = false;
    absl::Time fence_at = absl::InfiniteFuture();
  };

  absl::Time Now() { return harness_.clock().Now(); }
  absl::Duration Milliseconds(int64_t low, int64_t high) {
    return absl::Milliseconds(low + static_cast<int64_t>(random_() % (high - low + 1)));
  }
  void Lend() {
    const int64_t id = ++last_lease_;
    ASSERT_NO_FATAL_FAILURE(harness_.Borrow(id, kOwnBlocks));
    lent_[id];
  }
  // A round of the loop, as the engine does it: where nothing is computed, it waits for a word.
  void Round() {
    harness_.Pump();
    if (!harness_.loop().Step()) {
      harness_.loop().ServeBetweenSteps();
      Pass(absl::Milliseconds(1));
    }
    harness_.LandStores();
    while (!returns_.empty() && returns_.front() <= Now()) {
      returns_.erase(returns_.begin());
      Lend();
    }
    const absl::Status status = harness_.loop().CheckInvariants();
    ASSERT_TRUE(status.ok()) << status;
  }
  // Also in the midst of a step.
  void Pass(absl::Duration time) {
    for (const absl::Time end = Now() + time; Now() < end;) {
      absl::Time next = std::min(end, next_revocation_);
      for (const auto& [id, lease] : lent_) next = std::min(next, lease.fence_at);
      harness_.clock().Advance(std::max(absl::ZeroDuration(), next - Now()));
      harness_.AwaitCoordinator();
      FenceOverdue();
      if (Now() >= next_revocation_) Revoke();
    }
  }
  void FenceOverdue() {
    const std::vector<std::string> calls = harness_.transport().log().calls(heard_calls_);
    heard_calls_ += calls.size();
    for (auto& [id, lease] : lent_) {
      lease.released |= std::find(calls.begin(), calls.end(), absl::StrCat("SendRelease ", id)) != calls.end();
    }
    for (auto it = lent_.begin(); it != lent_.end();) {
      const auto& [id, lease] = *it;
      const bool released = lease.released;
      if (!released && lease.fence_at > Now()) {
        ++it;
        continue;
      }
      result_.fenced += !released;
      harness_.transport().Fence(kv::LeaseId(id));
      if (!released) harness_.coordinator().OnDonorGone(kv::LeaseId(id));
      harness_.AwaitCoordinator();
      returns_.push_back(Now() + Milliseconds(20, 400));
      it = lent_.erase(it);
    }
    std::sort(returns_.begin(), returns_.end());
  }
  void Revoke() {
    next_revocation_ += between_;
    std::vector<int64_t> ids;
    for (const auto& [id, lease] : lent_) {
      if (!lease.revoked) ids.push_back(id);
    }
    if (ids.empty()) return;
    const int64_t id = ids[random_() % ids.size()];
    lent_[id] = {.revoked = true, .fence_at = Now() + kDeadline};
    ++result_.revoked;
    const auto stores = harness_.transport().stores();
    for (; seen_stores_ < stores.size(); ++seen_stores_) stored_to_.insert(stores[seen_stores_].lease.value());
    result_.held += static_cast<int64_t>(stored_to_.contains(id));
    harness_.coordinator().OnRevoked(kv::LeaseId(id), kDeadline);
    harness_.AwaitCoordinator();
  }

  std::mt19937_64 random_;
  const absl::Duration between_;
  SharingHarness harness_;
  std::map<int64_t, Lent> lent_;
  std::vector<absl::Time> returns_;
  absl::Time next_revocation_ = absl::InfiniteFuture();
  int64_t last_lease_ = 0;
  size_t heard_calls_ = 0, seen_stores_ = 0;
  std::set<int64_t> stored_to_;
  StormResult result_;
};

class StormTest : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(ASecond, StormTest, testing::Values(10, 100));

TEST_P(StormTest, APromptOfSevenTimesOwnMemoryEndsWithItsTokensOrTheOneError) {
  const auto seeds = static_cast<int64_t>(FromEnvironment("STORM_SEEDS").value_or(50));
  StormResult sum, most;
  int64_t served = 0;
  for (int64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const StormResult result = StormWorld(seed, absl::Seconds(1) / GetParam()).Run();
    if (HasFailure()) return;
    served += result.served;
    sum.time += result.time, sum.revoked += result.revoked, sum.fenced += result.fenced, sum.again += result.again;
    sum.held += result.held;
    most.time = std::max(most.time, result.time), most.again = std::max(most.again, result.again);
    sum.losses += result.losses, most.losses = std::max(most.losses, result.losses);
  }
  std::cout << GetParam() << " revocations a second: " << served << " of " << seeds << " served, the others refused; "
            << sum.time / seeds << " on average, at most " << most.time << " (bound " << kBound << "); " << sum.revoked
            << " revoked, of which " << sum.held << " held something and " << sum.fenced << " were fenced; of "
            << kTokens << " tokens " << sum.again / seeds << " computed again, at most " << most.again << "; "
            << sum.losses << " losses, at most " << most.losses << " of one\n";
  EXPECT_GT(sum.revoked, 5 * seeds) << "there was no storm";
  EXPECT_GT(sum.losses, 0);
  if (GetParam() > 10) {  // so much is away at any time that the prompt has no room, nor have blocks that are to leave
    EXPECT_LE(sum.losses, seeds);
    EXPECT_EQ(sum.again, 0);
  } else {
    EXPECT_LE(sum.losses * 20, sum.held) << "a revocation in time costs no token";
  }
}

}  // namespace
}  // namespace swiftcache::engine::exec
