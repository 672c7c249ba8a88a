// SPDX-License-Identifier: Apache-2.0
#include "broker/loop/lease_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace swiftcache::broker::loop {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LeaseMetricsTest : public ::testing::Test {
 protected:
  static std::string Step(const std::string& step, int count) {
    return absl::StrCat("swiftcache_lease_", step, "_total{borrower=\"chat\",donor=\"code\"} ", count, "\n");
  }
  static std::string Unit(const std::string& donor, const std::string& borrower, int64_t bytes) {
    return absl::StrCat("swiftcache_elastic_unit_bytes{borrower=\"", borrower, "\",donor=\"", donor, "\"} ", bytes,
                        "\n");
  }
  void Ask(const std::string& donor, const std::string& borrower) {
    ledger::LeaseResponse answer;
    answer.units = {{donor, elastic::ElasticUnit{.bytes = 4096, .donor_blocks = 1, .borrower_blocks = 1}}};
    metrics_.NoteRequest(borrower, answer);
  }
  // A lease that has begun, or has ended.
  void Lease(const std::string& donor, const std::string& borrower, bool ended) {
    ledger::Lease lease{.donor = {donor, "1"}, .borrower = {borrower, "1"}, .num_bytes = 4096};
    if (ended) lease.state = ledger::LeaseState::kFenced;
    metrics_.Note(lease, ended ? std::optional(ledger::LeaseState::kGranted) : std::nullopt);
  }
  std::string Scrape() const { return registry_.Serialize(); }
  int SeriesOf(const std::string& name) const {
    const std::vector<std::string> lines = absl::StrSplit(Scrape(), '\n');
    return std::ranges::count_if(lines, [&](const auto& line) { return absl::StartsWith(line, name + "{"); });
  }

  Metrics registry_;
  LeaseMetrics metrics_{registry_};
};

TEST_F(LeaseMetricsTest, TheCountersOfAPairAreThereFromItsFirstOfferOn) {
  ledger::Lease lease{.donor = {.name = "code", .instance_id = "1"}, .borrower = {.name = "chat", .instance_id = "1"}};
  metrics_.Note(lease, std::nullopt);
  EXPECT_THAT(Scrape(),
              AllOf(HasSubstr(Step("granted", 0)), HasSubstr(Step("revoked", 0)), HasSubstr(Step("fenced", 0))));
  lease.state = ledger::LeaseState::kGranted;
  metrics_.Note(lease, ledger::LeaseState::kOffered);
  EXPECT_THAT(Scrape(),
              AllOf(HasSubstr(Step("granted", 1)), HasSubstr(Step("revoked", 0)), HasSubstr(Step("fenced", 0))));
}

// Whom a donor names as borrowers need not exist.
TEST_F(LeaseMetricsTest, OfPairsWithoutALeaseTheLastHaveMetrics) {
  constexpr int kIdle = LeaseMetrics::kIdlePairs;
  Lease("code", "chat", /*ended=*/false);
  for (const bool ended : {false, true}) {
    for (int i = 0; i < kIdle + 100; ++i) Lease(absl::StrCat("donor-", i), absl::StrCat("made-up-", i), ended);
  }
  for (const char* step : {"granted", "revoked", "fenced"}) {
    EXPECT_EQ(SeriesOf(absl::StrCat("swiftcache_lease_", step, "_total")), kIdle + 1);
  }
  EXPECT_EQ(SeriesOf("swiftcache_leased_bytes"), 2 * (kIdle + 1));
  const auto leased = [](const std::string& direction, const std::string& engine, int bytes) {
    return absl::StrCat("leased_bytes{direction=\"", direction, "\",engine=\"", engine, "\"} ", bytes, "\n");
  };
  EXPECT_THAT(Scrape(), AllOf(HasSubstr(Step("granted", 0)), HasSubstr(leased("in", "chat", 4096)),
                              HasSubstr(leased("in", "made-up-100", 0)), Not(HasSubstr("\"made-up-99\""))));
}

TEST_F(LeaseMetricsTest, AnEngineThatLeavesAndComesBackCountsOn) {
  for (int times = 1; times <= 2; ++times) {
    Lease("code", "chat", /*ended=*/false);
    metrics_.EngineRemoved("chat");  // the broker hears of it before its leases end
    Lease("code", "chat", /*ended=*/true);
    EXPECT_THAT(Scrape(), HasSubstr(Step("fenced", times)));
  }
}

TEST_F(LeaseMetricsTest, TheUnitOfAPairGoesWithEitherOfItsEngines) {
  for (const char* leaves : {"chat", "code"}) {
    Ask("code", "chat");
    Ask("code", "other");
    Ask("summary", "chat");
    Ask("summary", "other");
    metrics_.EngineRemoved(leaves);
    EXPECT_THAT(Scrape(), Not(HasSubstr(Unit("code", "chat", 4096))));
    EXPECT_THAT(Scrape(), Not(HasSubstr(leaves == std::string("chat") ? Unit("summary", "chat", 4096)
                                                                      : Unit("code", "other", 4096))));
    EXPECT_THAT(Scrape(), HasSubstr(Unit("summary", "other", 4096)));
  }
  Ask("code", "chat");
  EXPECT_THAT(Scrape(), HasSubstr(Unit("code", "chat", 4096))) << "another process of that name";
}

}  // namespace
}  // namespace swiftcache::broker::loop
