// SPDX-License-Identifier: Apache-2.0
#include "gateway/fleet/engine_prober.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "tests/fakes/fake_clock.h"

namespace swiftcache::gateway::fleet {
namespace {

using ::testing::ElementsAre;

// Is silent for as long as `on_ping` takes.
class SilentEngine final : public EngineClient {
 public:
  explicit SilentEngine(std::function<void()> on_ping) : on_ping_(std::move(on_ping)) {}
  std::unique_ptr<EngineCall> Generate(const EngineRequest&, std::shared_ptr<EngineObserver>) override {
    return nullptr;
  }
  absl::StatusOr<ModelCard> FetchModelCard(absl::Duration) override { return absl::UnavailableError("no card"); }
  absl::Status Ping(absl::Duration) override {
    on_ping_();
    return absl::DeadlineExceededError("no answer");
  }

 private:
  const std::function<void()> on_ping_;
};

std::shared_ptr<EngineLink> Link(const std::string& name, std::function<void()> on_ping) {
  return std::make_shared<EngineLink>(name, "m", std::make_unique<SilentEngine>(std::move(on_ping)));
}

class EngineProberTest : public ::testing::Test {
 protected:
  FakeClock clock_;
};

TEST_F(EngineProberTest, SixteenEnginesThatFallSilentTogetherAreAskedAtOnce) {
  std::atomic<int> under_way = 0;
  absl::Notification all;
  std::vector<std::shared_ptr<EngineLink>> links;
  for (int i = 0; i < 16; ++i) {
    links.push_back(Link(absl::StrCat(i), [&] {
      if (++under_way == 16) all.Notify();
      all.WaitForNotificationWithTimeout(absl::Seconds(20));
    }));
  }
  EngineProber prober({.silent_pings = 1}, clock_, [](const auto&, const absl::Status&) {});
  for (const auto& link : links) prober.StartProbing(link, clock_.Now());
  EXPECT_TRUE(all.WaitForNotificationWithTimeout(absl::Seconds(10)));
}

TEST_F(EngineProberTest, WhoIsDueForLongestIsAskedFirstAndAgainAsLongAsItIsSilent) {
  for (const bool upwards : {true, false}) {  // so that it is not the order in which they lie in memory
    std::vector<std::string> pinged;          // of the one thread
    absl::Notification begin, end;
    const auto before = Link("before", [&] { begin.WaitForNotification(); });
    std::vector<std::shared_ptr<EngineLink>> links;
    for (const char* name : {"a", "b", "c"}) links.push_back(Link(name, [&, name] { pinged.push_back(name); }));
    EngineProber prober({.silent_pings = 2, .threads = 1}, clock_, [&](const auto& link, const absl::Status&) {
      if (link == (upwards ? links.back() : links.front())) end.Notify();
    });
    prober.StartProbing(before, absl::InfinitePast());
    for (int i = 0; i < 3; ++i) {
      prober.StartProbing(links[upwards ? i : 2 - i], clock_.Now() - absl::Seconds(3 - i));
    }
    begin.Notify();
    ASSERT_TRUE(end.WaitForNotificationWithTimeout(absl::Seconds(30)));
    if (upwards) {
      EXPECT_THAT(pinged, ElementsAre("a", "a", "b", "b", "c", "c"));
    } else {
      EXPECT_THAT(pinged, ElementsAre("c", "c", "b", "b", "a", "a"));
    }
  }
}

}  // namespace
}  // namespace swiftcache::gateway::fleet
