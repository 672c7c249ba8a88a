// SPDX-License-Identifier: Apache-2.0
// How many may watch.
#include <gmock/gmock.h>

#include "tests/broker/loop/loop_fixture.h"

namespace swiftcache::broker::loop {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class BrokerWatchersTest : public BrokerLoopTest {
 protected:
  // "": of everything. The loop has seen it when this returns.
  std::shared_ptr<KeepingWatcher> Watch(const std::string& instance_id = "") {
    auto watcher = std::make_shared<KeepingWatcher>(1000, instance_id);
    loop_->Watch(watcher);
    WaitForTheLoop();
    return watcher;
  }
  void WaitForTheLoop() { EXPECT_EQ(Heartbeat("nobody", {}).code(), absl::StatusCode::kNotFound); }
  static absl::StatusCode CodeOf(const std::shared_ptr<KeepingWatcher>& watcher) {
    const std::vector<absl::Status> closed = watcher->closed();
    return closed.size() == 1 ? closed[0].code() : absl::StatusCode::kOk;
  }
};

TEST_F(BrokerWatchersTest, OneTooManyIsRefusedUntilAnotherHasEnded) {
  loop_.reset();
  Start(clock_, {}, /*max_watchers=*/2);
  const auto first = Watch(), second = Watch(), third = Watch();
  EXPECT_EQ(CodeOf(third), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(third->WaitFor(0), IsEmpty()) << "not even a snapshot was made";
  loop_->Unwatch(third);  // as its stream does when it ends
  EXPECT_EQ(CodeOf(Watch("engine")), absl::StatusCode::kOk) << "engines are counted by themselves";
  EXPECT_EQ(CodeOf(Watch()), absl::StatusCode::kResourceExhausted);
  loop_->Unwatch(first);
  const auto fourth = Watch();
  ASSERT_TRUE(Register(EngineNamed("a")).ok());
  EXPECT_THAT(fourth->WaitFor(2), SizeIs(2));
  EXPECT_THAT(second->WaitFor(2), SizeIs(2));
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("swiftcache_broker_watchers 3\n"));
}

TEST_F(BrokerWatchersTest, AsManyEnginesWatchAsMayRegister) {
  loop_.reset();
  Start(clock_, {.max_engines = 2});
  const auto first = Watch("1"), second = Watch("2"), third = Watch("3");
  EXPECT_EQ(CodeOf(second), absl::StatusCode::kOk);
  EXPECT_EQ(CodeOf(third), absl::StatusCode::kResourceExhausted);
  loop_->Unwatch(first);
  EXPECT_EQ(CodeOf(Watch("3")), absl::StatusCode::kOk);
}

TEST_F(BrokerWatchersTest, AnEngineThatWatchesOnceMoreEndsTheWatchBefore) {
  const auto before = Watch("engine"), now = Watch("engine");
  EXPECT_EQ(CodeOf(before), absl::StatusCode::kAborted);
  loop_->Unwatch(before);
  WaitForTheLoop();
  std::promise<absl::Status> limited;
  loop_->LimitLease("model", 0, [&](absl::Status status) { limited.set_value(status); });
  ASSERT_TRUE(limited.get_future().get().ok());
  EXPECT_THAT(now->WaitFor(2), SizeIs(2));
  EXPECT_THAT(before->WaitFor(1), SizeIs(1));
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("swiftcache_broker_watchers 1\n"));
}

}  // namespace
}  // namespace swiftcache::broker::loop
