// SPDX-License-Identifier: Apache-2.0
#include "engine/coordinator/account_metrics.h"

#include <gtest/gtest.h>

#include "tests/engine/coordinator/coordinator_fixture.h"

namespace swiftcache::engine::coordinator {
namespace {

class AccountMetricsTest : public CoordinatorTest {
 protected:
  // What a scrape finds.
  double Scraped(const std::string& name) {
    metrics_.Set(coordinator_->Accounts());
    return Metric(name);
  }

 private:
  AccountMetrics metrics_{registry_};
};

TEST_F(AccountMetricsTest, WhatIsLentIsCountedByTheBorrowersModelAlsoWhileNothingHappens) {
  Start({.ttl = absl::Seconds(9)});
  Lend(7);
  Settle();
  fake_clock_.Advance(absl::Seconds(2));  // of which the coordinator's thread hears nothing
  EXPECT_EQ(Scraped("swiftcache_lease_byte_seconds_total{borrower_model=\"chat\"}"), 2 * 2 * kBlockBytes);
  EXPECT_EQ(coordinator_->Accounts().at("chat").bytes, 2 * kBlockBytes);
  fake_clock_.Advance(absl::Seconds(1));
  coordinator_->OnReleased(kv::LeaseId(7));
  Settle();
  fake_clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(Scraped("swiftcache_lease_byte_seconds_total{borrower_model=\"chat\"}"), 3 * 2 * kBlockBytes);
  EXPECT_EQ(coordinator_->Accounts().at("chat").byte_seconds(), 3 * 2 * kBlockBytes);
}

TEST_F(AccountMetricsTest, WhyLeasesEndIsCountedByTheBorrowersModel) {
  const auto ends = [this](const std::string& reason, const std::string& end) {
    return Scraped("swiftcache_lease_ends_total{borrower_model=\"chat\",end=\"" + end + "\",reason=\"" + reason +
                   "\"}");
  };
  Start({.broker_patience = absl::ZeroDuration()});
  Lend(7);
  Lend(8);
  coordinator_->NeedBack(2, 4);
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 7"));
  coordinator_->OnReleased(kv::LeaseId(7));
  coordinator_->OnBorrowerGone(kv::LeaseId(8));
  Settle();
  EXPECT_EQ(ends("need", "released"), 1);
  EXPECT_EQ(ends("borrower_gone", "fenced"), 1);
  EXPECT_EQ(ends("given_back", "released"), 0);
  EXPECT_EQ(ends("broker", "fenced"), 0);
}

}  // namespace
}  // namespace swiftcache::engine::coordinator
