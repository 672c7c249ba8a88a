// SPDX-License-Identifier: Apache-2.0
#include "gateway/fleet/engine_link.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/fakes/fake_engine_client.h"

namespace swiftcache::gateway::fleet {
namespace {

class CountingObserver final : public LossObserver {
 public:
  void OnLost(const absl::Status& why) override {
    ++losses;
    last = why;
  }
  int losses = 0;
  absl::Status last;
};

TEST(EngineLinkTest, WhoComesToALostLinkHearsItAtOnce) {
  fakes::FakeEngine engine;
  const auto link = std::make_shared<EngineLink>("a", "m", engine.NewClient());
  link->MarkLost(absl::UnavailableError("gone"));
  const auto observer = std::make_shared<CountingObserver>();
  EngineLink::InFlight request(link, observer);
  EXPECT_EQ(observer->losses, 1);
  EXPECT_EQ(observer->last, absl::UnavailableError("gone"));
  EXPECT_EQ(link->in_flight(), 1);
}

TEST(EngineLinkTest, WhoLeftOrCameAfterTheRestoreHearsNothing) {
  fakes::FakeEngine engine;
  const auto link = std::make_shared<EngineLink>("a", "m", engine.NewClient());
  const auto gone = std::make_shared<CountingObserver>();
  { EngineLink::InFlight request(link, gone); }
  link->MarkLost(absl::UnavailableError("gone"));
  link->ClearLost();
  const auto late = std::make_shared<CountingObserver>();
  EngineLink::InFlight request(link, late);
  EXPECT_EQ(gone->losses, 0);
  EXPECT_EQ(late->losses, 0);
}

}  // namespace
}  // namespace swiftcache::gateway::fleet
