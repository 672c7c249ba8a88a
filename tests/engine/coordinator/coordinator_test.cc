// SPDX-License-Identifier: Apache-2.0
// What a coordinator gives and takes together, and its end.
#include "engine/coordinator/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/engine/coordinator/coordinator_fixture.h"

namespace swiftcache::engine::coordinator {
namespace {

TEST_F(CoordinatorTest, AtTheEndPeersThatAnswerGetAndGiveEverythingBack) {
  Start({.revoke_deadline = absl::Hours(1)});
  Lend(1);
  Take(9);
  std::thread peers([this] {
    EXPECT_TRUE(transport_.log().WaitFor("SendRevoke 1"));
    coordinator_->OnReleased(kv::LeaseId(1));
    EXPECT_TRUE(loop_.log().WaitFor("Drain 9"));
    coordinator_->Drained(kv::LeaseId(9));
  });
  coordinator_->Stop(absl::InfiniteFuture());
  peers.join();
  EXPECT_EQ(broker_.log().Count("RELEASED 1"), 1);
  EXPECT_EQ(loop_.log().Count("TakeBack 1"), 1);
  EXPECT_EQ(transport_.log().Count("SendRelease 9"), 1);
  EXPECT_EQ(transport_.log().Count("Close 9"), 1);
  EXPECT_EQ(broker_.log().Count("FENCED 1"), 0);
}

TEST_F(CoordinatorTest, AtTheEndPeersThatDoNotAnswerAreFenced) {
  Start({.revoke_deadline = absl::Hours(1)});
  Lend(1);
  coordinator_->Stop(absl::InfinitePast());
  EXPECT_EQ(transport_.log().Count("SendRevoke 1"), 1);
  EXPECT_EQ(transport_.log().Count("Fence 1"), 1);
}

TEST_F(CoordinatorTest, HeldTellsWhatIsGivenAndTaken) {
  Start();
  Lend(1);
  Take(9);
  Settle();
  std::vector<int64_t> held;
  for (const lease::Lease& lease : coordinator_->Held()) held.push_back(lease.id.value());
  EXPECT_THAT(held, testing::UnorderedElementsAre(1, 9));
}

}  // namespace
}  // namespace swiftcache::engine::coordinator
