// SPDX-License-Identifier: Apache-2.0
#include "broker/elastic/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "broker/elastic/default_policy.h"

namespace swiftcache::broker::elastic {
namespace {

constexpr absl::Duration kWindow = absl::Seconds(60), kHold = absl::Seconds(3);
static_assert(DefaultPolicy::kHoldSeconds == 3);
constexpr Worker kWorker{.num_blocks = 1000, .block_tokens = 16};

class DefaultPolicyTest : public ::testing::Test {
 protected:
  int64_t Lendable() { return policy_->LendableBlocks(0, {}, now_); }

  std::unique_ptr<Policy> policy_ = CreatePolicy({.window = kWindow, .headroom_percent = 10}, kWorker);
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(DefaultPolicyTest, WhoHasReportedNothingLendsNothing) { EXPECT_EQ(Lendable(), 0); }

TEST_F(DefaultPolicyTest, EveryAdmittedAndWaitingBlockCountsAndAHeadroomStays) {
  policy_->Report({.used_blocks = 300, .waiting_blocks = 200, .window_max_request_tokens = 16}, now_);
  EXPECT_EQ(Lendable(), 1000 - 500 - 100);
  policy_->Report({.used_blocks = 900, .waiting_blocks = 900}, now_);
  EXPECT_EQ(Lendable(), 0);
}

TEST_F(DefaultPolicyTest, ThePeakOfTheWindowCounts) {
  policy_->Report({.used_blocks = 1, .window_peak_blocks = 600}, now_);
  EXPECT_EQ(Lendable(), 300);
}

TEST_F(DefaultPolicyTest, ACacheThatIsWorthKeepingIsKeptAsLongAsItIsReported) {
  policy_->Report({.used_blocks = 100, .cache_blocks = 600}, now_);
  EXPECT_EQ(Lendable(), 300) << "requests in use are among the blocks used last: the larger counts";
  now_ += absl::Hours(1);
  EXPECT_EQ(Lendable(), 300);
  policy_->Report({.used_blocks = 100}, now_);
  EXPECT_EQ(Lendable(), 800);
}

TEST_F(DefaultPolicyTest, ShrinksAtOnceAndGrowsWhenTheHoldHasPassedQuietly) {
  policy_->Report({}, now_);
  EXPECT_EQ(Lendable(), 900);
  policy_->Report({.used_blocks = 700}, now_);
  EXPECT_EQ(Lendable(), 200);
  policy_->Report({}, now_ += absl::Seconds(10));  // so long it was needed
  EXPECT_EQ(Lendable(), 200);
  now_ += kHold - absl::Milliseconds(1);
  EXPECT_EQ(Lendable(), 200);
  now_ += absl::Milliseconds(1);
  EXPECT_EQ(Lendable(), 900);
}

TEST_F(DefaultPolicyTest, APeakBetweenReportsIsRememberedOnce) {
  policy_->Report({.window_peak_blocks = 700}, now_);
  EXPECT_EQ(Lendable(), 200);
  now_ += kHold;
  policy_->Report({.window_peak_blocks = 700}, now_);  // still told, for a window
  EXPECT_EQ(Lendable(), 900);
  policy_->Report({.window_peak_blocks = 750}, now_);
  EXPECT_EQ(Lendable(), 150);
}

TEST_F(DefaultPolicyTest, InNeedTakesBackForAllThatWaitAndItsHeadroomAtOnce) {
  policy_->Report({.used_blocks = 400, .waiting_blocks = 250}, now_);
  EXPECT_EQ(policy_->TakeBackBlocks(10, 600, {}, now_), 350);  // owns 400, needs 650 and 100
  EXPECT_EQ(policy_->TakeBackBlocks(500, 600, {}, now_), 500);
  EXPECT_EQ(policy_->TakeBackBlocks(5000, 600, {}, now_), 600);
}

TEST(PaperPolicyTest, LendsAllButTheLongestRequestInUnits) {
  const auto policy = CreatePolicy({.kind = PolicyKind::kPaper}, kWorker);
  EXPECT_EQ(policy->LendableBlocks(0, {}, absl::UnixEpoch()), 0);
  policy->Report({.used_blocks = 900, .window_max_request_tokens = 160}, absl::UnixEpoch());
  EXPECT_EQ(policy->LendableBlocks(0, {}, absl::UnixEpoch()), 990);  // as printed: the sum is not seen
  EXPECT_EQ(policy->LendableBlocks(0, {.worker = 100, .master = 3}, absl::UnixEpoch()), 900);
  EXPECT_EQ(policy->LendableBlocks(900, {.worker = 100, .master = 3}, absl::UnixEpoch()), 900);
  EXPECT_EQ(policy->TakeBackBlocks(1, 900, {.worker = 100, .master = 3}, absl::UnixEpoch()), 100);
  EXPECT_EQ(policy->TakeBackBlocks(101, 900, {.worker = 100, .master = 3}, absl::UnixEpoch()), 200);
}

// Several workers under one borrower that takes whatever may be lent, second by second. A burst is `requests` requests
// of `request_blocks` in one second, done five seconds later.
struct Load {
  absl::Duration period;
  int64_t requests = 0, request_blocks = 0;
};

struct Churn {
  int64_t take_backs = 0;    // calls of ScaleUp
  int64_t moved_blocks = 0;  // taken from the borrower
  int64_t worst_loss = 0;    // blocks that the borrower lost in one second
};

class Cluster {
 public:
  Cluster(PolicyKind kind, int workers) {
    for (int i = 0; i < workers; ++i) {
      workers_.push_back({.policy = CreatePolicy({.kind = kind, .window = kWindow}, kWorker)});
    }
  }
  Churn Run(const Load& load, absl::Duration length) {
    for (absl::Duration t; t < length; t += absl::Seconds(1)) {
      const bool bursts = absl::Trunc(t, load.period) == t && t > absl::ZeroDuration();
      int64_t lost = 0;
      for (Station& station : workers_) lost += Second(station, absl::UnixEpoch() + t, bursts ? load : Load{});
      churn_.worst_loss = std::max(churn_.worst_loss, lost);
    }
    return churn_;
  }

 private:
  struct Running {
    absl::Time until;
    int64_t blocks = 0;
  };
  struct Seen {
    absl::Time when;
    int64_t longest_tokens = 0, peak_blocks = 0;
  };
  struct Station {
    std::unique_ptr<Policy> policy;
    int64_t lent = 0, used = 0;
    std::vector<Running> running;
    std::deque<Seen> window;
  };

  int64_t Second(Station& station, absl::Time now, const Load& burst) {
    int64_t lost = 0;
    std::erase_if(station.running, [&](const Running& r) { return r.until <= now; });
    station.used = 0;
    for (const Running& r : station.running) station.used += r.blocks;
    for (int64_t i = 0; i < burst.requests; ++i) {  // they are all there: the rest waits
      Report(station, (burst.requests - i) * burst.request_blocks, burst.request_blocks * 16, now);
      lost += Admit(station, burst.request_blocks, now);
    }
    Report(station, 0, 0, now);
    station.lent = std::max(station.lent, station.policy->LendableBlocks(station.lent, {}, now));
    return lost;
  }
  void Report(Station& station, int64_t waiting, int64_t tokens, absl::Time now) {
    station.window.push_back({now, tokens, station.used + waiting});
    while (now - station.window.front().when >= kWindow) station.window.pop_front();
    Demand demand{.used_blocks = station.used, .waiting_blocks = waiting};
    for (const Seen& seen : station.window) {
      demand.window_max_request_tokens = std::max(demand.window_max_request_tokens, seen.longest_tokens);
      demand.window_peak_blocks = std::max(demand.window_peak_blocks, seen.peak_blocks);
    }
    station.policy->Report(demand, now);
  }
  int64_t Admit(Station& station, int64_t blocks, absl::Time now) {
    const int64_t own = kWorker.num_blocks - station.lent;
    int64_t taken = 0;
    if (station.used + blocks > own) {
      taken = station.policy->TakeBackBlocks(station.used + blocks - own, station.lent, {}, now);
      station.lent -= taken;
      ++churn_.take_backs;
      churn_.moved_blocks += taken;
    }
    station.used += blocks;
    station.running.push_back({now + absl::Seconds(5), blocks});
    EXPECT_LE(station.used + station.lent, kWorker.num_blocks) << "a worker's need was not met";
    return taken;
  }

  std::vector<Station> workers_;
  Churn churn_;
};

Churn Simulate(PolicyKind kind, int workers, const Load& load, absl::Duration length = absl::Hours(6)) {
  return Cluster(kind, workers).Run(load, length);
}

// How often a worker takes memory back is bounded by its spikes, and moves no more than they need.
TEST(ChurnTest, ASpikeTakesBackOnceAndWhatItNeeds) {
  for (const absl::Duration period : {1.5 * kHold, 20 * kHold, 60 * kHold, 200 * kHold}) {
    const Load load{.period = period, .requests = 20, .request_blocks = 30};
    const int64_t spikes = absl::Hours(6) / period - 1;
    const Churn paper = Simulate(PolicyKind::kPaper, 1, load), ours = Simulate(PolicyKind::kDefault, 1, load);
    EXPECT_GE(paper.take_backs, std::min(10 * spikes, int64_t{600})) << period;  // request by request
    EXPECT_LE(ours.take_backs, spikes + 1) << period;
    EXPECT_LE(ours.moved_blocks, (spikes + 1) * 20 * 30 + 60) << period;
    EXPECT_GE(ours.take_backs, 1) << "the load spikes";
  }
}

TEST(ChurnTest, SpikesWithinTheHoldTakeBackOnce) {
  const Load load{.period = absl::Seconds(7), .requests = 20, .request_blocks = 30};  // each is there for five seconds
  EXPECT_LE(Simulate(PolicyKind::kDefault, 1, load, absl::Minutes(20)).take_backs, 3);
}

TEST(ChurnTest, SynchronisedSpikesCostTheBorrowerNoMoreThanTheyNeed) {
  const Load load{.period = 60 * kHold, .requests = 20, .request_blocks = 30};
  const int64_t spikes = absl::Hours(6) / load.period - 1;
  const Churn ours = Simulate(PolicyKind::kDefault, 3, load);
  EXPECT_LE(ours.take_backs, 3 * (spikes + 1));
  EXPECT_LE(ours.worst_loss, 3 * (20 * 30 + 60));
}

TEST(ChurnTest, ASteadyWorkerLendsWithoutAnyChurn) {
  const Load load{.period = absl::Seconds(2), .requests = 2, .request_blocks = 30};
  const Churn ours = Simulate(PolicyKind::kDefault, 1, load, absl::Hours(1));
  EXPECT_LE(ours.take_backs, 2);
}

}  // namespace
}  // namespace swiftcache::broker::elastic
