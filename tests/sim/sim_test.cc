// SPDX-License-Identifier: Apache-2.0
// The whole control plane of leases, simulated: thousands of runs, each of its own seed, with every fault there is.
//
//   SIM_SEEDS=1000000 sim_test     more runs than the usual 10,000; SIM_FIRST_SEED says where they begin
//   SIM_SEED=1234 sim_test         one run again, with its trace; SIM_BROKER_ONLY=1: where only brokers come and go
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>

#include "absl/synchronization/mutex.h"
#include "common/log/log.h"
#include "tests/fakes/environment.h"
#include "tests/sim/cluster.h"

namespace swiftcache::sim {
namespace {

std::string RunOne(uint64_t seed, PlantedBug bug, Tally& tally) {
  return Cluster({.seed = seed, .bug = bug}, tally).Run();
}

// Losing leases is the daily work here.
[[maybe_unused]] const auto* const quiet = testing::AddGlobalTestEnvironment([] {
  struct Quiet : testing::Environment {
    void SetUp() override {
      FLAGS_minloglevel = google::GLOG_FATAL;
      setenv("TZ", "UTC0", /*overwrite=*/1);  // or each line that is not logged looks for the zone's file
      absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // a fifth of the time, with one thread
    }
  };
  return new Quiet;
}());

TEST(SimTest, NoSeedBreaksAnInvariant) {
  Tally tally;
  if (const auto seed = FromEnvironment("SIM_SEED")) {
    const Faults faults = std::getenv("SIM_BROKER_ONLY") != nullptr ? Faults::kBrokerOnly : Faults::kAll;
    ASSERT_EQ(Cluster({.seed = *seed, .faults = faults, .traced = true}, tally).Run(), "") << "seed " << *seed;
    return;
  }
  const uint64_t num_seeds = FromEnvironment("SIM_SEEDS").value_or(10'000);
  const uint64_t first = FromEnvironment("SIM_FIRST_SEED").value_or(1);
  for (uint64_t seed = first; seed < first + num_seeds; ++seed) {
    const std::string failure = RunOne(seed, PlantedBug::kNone, tally);
    ASSERT_EQ(failure, "") << "seed " << seed << "; again with its trace: SIM_SEED=" << seed;
  }
  std::cout << tally.runs << " runs, " << tally.events << " events; leases: " << tally.grants << " granted, "
            << tally.released << " released, " << tally.fenced << " fenced, " << tally.declined << " declined, "
            << tally.lost_in_use << " lost, " << tally.unread << " given back unread, " << tally.agreed_leases
            << " alive in peace, " << tally.renewals << " renewals; KV: " << tally.stores << " stores ("
            << tally.refused_stores << " refused), " << tally.local_reads << " local reads, " << tally.remote_reads
            << " remote reads (" << tally.remote_reads_failed << " lost), " << tally.moved_back
            << " moved back; faults: " << tally.engine_crashes << " engine crashes, " << tally.broker_restarts
            << " broker restarts, " << tally.broker_replacements << " replacements, " << tally.broker_stops
            << " broker stops, " << tally.departures << " departures, " << tally.stops << " stops, " << tally.hangs
            << " hangs, " << tally.cuts << " cuts, " << tally.own_needs << " own needs (" << tally.answered_needs
            << " answered); " << tally.stray_messages << " late or repeated messages ignored\n";
  for (int64_t happened : {tally.grants,
                           tally.released,
                           tally.fenced,
                           tally.declined,
                           tally.lost_in_use,
                           tally.unread,
                           tally.agreed_leases,
                           tally.renewals,
                           tally.refused_stores,
                           tally.remote_reads,
                           tally.remote_reads_failed,
                           tally.moved_back,
                           tally.engine_crashes,
                           tally.broker_restarts,
                           tally.broker_replacements,
                           tally.broker_stops,
                           tally.departures,
                           tally.stops,
                           tally.hangs,
                           tally.cuts,
                           tally.own_needs,
                           tally.answered_needs,
                           tally.stray_messages}) {
    EXPECT_GT(happened, tally.runs / 100) << "something hardly ever happened";
  }
}

TEST(SimTest, ARunIsTheSameAgain) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Tally first, second;
    EXPECT_EQ(RunOne(seed, PlantedBug::kNone, first), RunOne(seed, PlantedBug::kNone, second));
    EXPECT_EQ(first.events, second.events) << "seed " << seed;
    EXPECT_EQ(first.remote_reads, second.remote_reads) << "seed " << seed;
  }
}

/// The first seed whose run notices the bug, and what it says.
std::optional<std::string> Notice(PlantedBug bug, Faults faults = Faults::kAll, uint64_t num_seeds = 999) {
  Tally tally;
  for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
    const std::string failure = Cluster({.seed = seed, .bug = bug, .faults = faults}, tally).Run();
    if (failure.empty()) continue;
    std::cout << "noticed by seed " << seed << ": " << failure << "\n";
    return failure;
  }
  return std::nullopt;
}

TEST(SimTest, AReaderThatIgnoresTheGenerationIsNoticed) {
  for (PlantedBug bug : {PlantedBug::kNoGenerationCheck, PlantedBug::kOnlyFirstCheck, PlantedBug::kMovesUnchecked}) {
    const auto failure = Notice(bug);
    ASSERT_TRUE(failure.has_value());
    EXPECT_NE(failure->find("wrong KV"), std::string::npos) << *failure;
  }
}

TEST(SimTest, AReleaseBeforeTheDrainIsNoticed) {
  const auto failure = Notice(PlantedBug::kReleaseBeforeDrain);
  ASSERT_TRUE(failure.has_value());
  EXPECT_NE(failure->find("still uses it"), std::string::npos) << *failure;
}

TEST(SimTest, AnExtentThatIsLeasedTwiceIsNoticed) {
  const auto failure = Notice(PlantedBug::kLeaseTwice);
  ASSERT_TRUE(failure.has_value());
  EXPECT_NE(failure->find("to lease"), std::string::npos) << *failure;
}

TEST(SimTest, ANeedThatIsNotAnsweredInTimeIsNoticed) {
  const auto too_little = Notice(PlantedBug::kMiscountsLent);
  ASSERT_TRUE(too_little.has_value());
  EXPECT_NE(too_little->find("not back"), std::string::npos) << *too_little;
  const auto too_late = Notice(PlantedBug::kLateCoordinator);
  ASSERT_TRUE(too_late.has_value());
  const auto says = [&](const char* what) { return too_late->find(what) != std::string::npos; };
  EXPECT_TRUE(says("after its deadline") || says("not back")) << *too_late;
}

TEST(SimTest, ABorrowerThatBelievesTheBrokerIsNoticed) {
  const auto failure = Notice(PlantedBug::kBelieveTheBroker, Faults::kBrokerOnly);
  ASSERT_TRUE(failure.has_value());
  EXPECT_NE(failure->find("cost a borrower a lease"), std::string::npos) << *failure;
}

TEST(SimTest, TheDonorHoldsTheLineAgainstABrokerThatLeasesTwice) {
  Tally tally;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    ASSERT_EQ(RunOne(seed, PlantedBug::kBrokerLeasesTwice, tally), "") << "seed " << seed;
  }
  EXPECT_GT(tally.declined, 700);  // hundreds more than without the bug
}

// Of engines that want nothing back, on a network that is prompt.
TEST(SimTest, ABrokerThatDiesOrIsReplacedCostsNoBorrowerALeaseThatItUses) {
  Tally tally;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    ASSERT_EQ(Cluster({.seed = seed, .faults = Faults::kBrokerOnly}, tally).Run(), "") << "seed " << seed;
  }
  EXPECT_GT(tally.broker_restarts + tally.broker_replacements, 300);
  EXPECT_GT(tally.agreed_leases, 1000);
}

// Killed under load, and back after so many seconds; one engine finds it four seconds later than the others.
TEST(SimTest, ABrokerThatIsAwayEndsNoLeaseAndItsLimitsStand) {
  for (const int64_t seconds : {1, 5, 30}) {
    Tally tally;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      const Cluster::Options options{.seed = seed, .faults = Faults::kBrokerAway, .broker_away = seconds * 1'000'000};
      ASSERT_EQ(Cluster(options, tally).Run(), "") << "seed " << seed << ", away for " << seconds << " s";
    }
    std::cout << "away for " << seconds << " s: " << tally.kept_leases << " leases lived on, and were read "
              << tally.reads_meanwhile << " times meanwhile; " << tally.kept_of_cut_off
              << " of engines cut off for longer\n";
    EXPECT_GT(tally.kept_leases, 20);
    EXPECT_GT(tally.kept_of_cut_off, 20);
    EXPECT_GT(tally.reads_meanwhile, 1000);
  }
}

}  // namespace
}  // namespace swiftcache::sim
