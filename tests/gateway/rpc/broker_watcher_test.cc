// SPDX-License-Identifier: Apache-2.0
#include "gateway/rpc/broker_watcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/rpc/server.h"
#include "tests/fakes/fake_broker_service.h"
#include "tests/fakes/log_lines.h"

namespace swiftcache::gateway::rpc {
namespace {

using fakes::Removed;
using fakes::Snapshot;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Writes down what it hears.
class Diary final : public fleet::ClusterSink {
 public:
  void OnSnapshot(const std::string& incarnation, std::vector<fleet::EngineStatus> engines) override {
    std::vector<std::string> names;
    for (const fleet::EngineStatus& engine : engines) names.push_back(engine.info.name);
    Write(absl::StrCat("snapshot ", incarnation, ": ", absl::StrJoin(names, " ")));
  }
  void OnUpdate(fleet::EngineStatus engine) override { Write("updated " + engine.info.name); }
  void OnRemoved(const std::string& engine_name, bool died) override {
    Write((died ? "died " : "removed ") + engine_name);
  }
  void OnBrokerLost() override { Write("lost"); }

  std::vector<std::string> Wait(size_t entries) {
    absl::MutexLock lock(&mutex_);
    wanted_ = entries;
    mutex_.Await(absl::Condition(
        +[](Diary* d) { return d->entries_.size() >= d->wanted_; }, this));
    return entries_;
  }

 private:
  void Write(std::string entry) {
    absl::MutexLock lock(&mutex_);
    entries_.push_back(std::move(entry));
  }
  absl::Mutex mutex_;
  size_t wanted_ = 0;
  std::vector<std::string> entries_;
};

class BrokerWatcherTest : public ::testing::Test {
 protected:
  BrokerWatcherTest() { server_ = *RpcServer::Create({.listen = "127.0.0.1:0"}, {&broker_}); }
  ~BrokerWatcherTest() override {
    watcher_.reset();
    broker_.Stop();
    server_->Stop(absl::Now());
  }
  void Watch() {
    watcher_ = BrokerWatcher::Create({.address = server_->address(),
                                      .watcher = "test",
                                      .min_backoff = absl::Milliseconds(1),
                                      .max_backoff = absl::Milliseconds(5)},
                                     diary_);
  }

  fakes::FakeBrokerService broker_;
  Diary diary_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<BrokerWatcher> watcher_;
};

TEST_F(BrokerWatcherTest, PassesSnapshotAndNewsInOrder) {
  v1::WatchResponse update = Snapshot("b1", 6, {});
  update.mutable_updated()->mutable_info()->set_name("c");
  v1::WatchResponse death = Removed("b1", 8, "b");
  death.set_removed_died(true);
  broker_.Play({Snapshot("b1", 5, {"a", "b"}), update, Removed("b1", 7, "a"), death});
  Watch();
  EXPECT_THAT(diary_.Wait(4), ElementsAre("snapshot b1: a b", "updated c", "removed a", "died b"));
}

TEST_F(BrokerWatcherTest, AGapOpensANewStreamAndTheNewsBehindItIsNotPassedOn) {
  broker_.Play({Snapshot("b1", 5, {"a"}), Removed("b1", 7, "lost one before"), Removed("b1", 8, "too late")});
  broker_.Play({Snapshot("b1", 9, {"b"})});
  Watch();
  EXPECT_THAT(diary_.Wait(3), ElementsAre("snapshot b1: a", "lost", "snapshot b1: b"));
  EXPECT_EQ(broker_.streams(), 2);
}

TEST_F(BrokerWatcherTest, NewsOfAnotherIncarnationIsAGap) {
  broker_.Play({Snapshot("b1", 5, {"a"}), Removed("b2", 6, "a")});
  broker_.Play({Snapshot("b2", 1, {})});
  Watch();
  EXPECT_THAT(diary_.Wait(3), ElementsAre("snapshot b1: a", "lost", "snapshot b2: "));
}

TEST_F(BrokerWatcherTest, NewsBeforeASnapshotIsAGap) {
  broker_.Play({Removed("b1", 1, "a")});
  broker_.Play({Snapshot("b1", 2, {"b"})});
  Watch();
  EXPECT_THAT(diary_.Wait(2), ElementsAre("lost", "snapshot b1: b"));
}

TEST_F(BrokerWatcherTest, ALostStreamIsOpenedAgain) {
  broker_.Play({Snapshot("b1", 1, {"a"})}, /*stay_open=*/false);
  broker_.Play({Snapshot("b1", 2, {"a", "b"})});
  Watch();
  EXPECT_THAT(diary_.Wait(3), ElementsAre("snapshot b1: a", "lost", "snapshot b1: a b"));
}

TEST_F(BrokerWatcherTest, WhatIsKnownWithoutTheBrokerIsSaid) {
  fakes::LogLines log;
  broker_.Play({}, /*stay_open=*/false);
  broker_.Play({Snapshot("b1", 1, {"a"})}, /*stay_open=*/false);
  broker_.Play({Snapshot("b1", 2, {"b"})});
  Watch();
  diary_.Wait(3);
  const std::string at = server_->address();
  EXPECT_THAT(log.lines(),
              ElementsAre(HasSubstr("no broker answers at " + at + ", no model is known yet; start one or"),
                          HasSubstr("broker " + at + " is away, the last table stays: ")));
}

TEST_F(BrokerWatcherTest, EndsWhileTheBrokerIsAway) {
  Watch();
  while (broker_.streams() < 3) std::this_thread::yield();
  watcher_.reset();
}

}  // namespace
}  // namespace swiftcache::gateway::rpc
