// SPDX-License-Identifier: Apache-2.0
#include "broker/loop/lease_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

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
  std::string Scrape() const { return registry_.Serialize(); }

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
