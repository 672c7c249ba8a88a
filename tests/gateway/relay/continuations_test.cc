// SPDX-License-Identifier: Apache-2.0
// Requests for several continuations, which end by themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "tests/gateway/relay/relay_fixture.h"

namespace swiftcache::gateway {
namespace {

using fakes::FakeCall;
using fleet::FinishReason;
using ::testing::ElementsAre;

class ContinuationsTest : public RelayFixture {
 protected:
  ContinuationsTest() { Serve({"a"}); }
  // Two continuations, each of which ends at "STOP".
  static relay::GenerateRequest TwoThatStop() {
    relay::GenerateRequest request = Prompt("x");
    request.sampling.n = 2;
    request.sampling.stop = {"STOP"};
    return request;
  }
};

TEST_F(ContinuationsTest, SeveralContinuationsEndOnTheirOwn) {
  const relay::GenerateRequest request = TwoThatStop();
  // Index 1 ended here, index 0 at the engine, which would go on with index 1.
  engines_["a"].SetScript([](FakeCall& call) {
    call.SendText("left", 0);
    call.SendText("right STOP", 1);
    call.SendText("dropped", 1);
    call.SendText("!", 0);
    call.SendFinish(FinishReason::kLength, 0);
    call.WaitCancelled();
  });
  ASSERT_EQ(Run(request), absl::OkStatus());
  EXPECT_EQ(sink_->Text(0), "left!");
  EXPECT_EQ(sink_->Text(1), "right ");
  EXPECT_EQ(sink_->Last(0)->finish, FinishReason::kLength);
  EXPECT_EQ(sink_->Last(1)->finish, FinishReason::kStop);
}

TEST_F(ContinuationsTest, AContinuationThatAStopStringEndsIsCancelledAloneWhileAnotherGoesOn) {
  const relay::GenerateRequest request = TwoThatStop();
  bool cancelled = true;
  engines_["a"].SetScript([&](FakeCall& call) {
    call.SendText("left STOP", 0);
    EXPECT_THAT(call.WaitCancelledIndices(), ElementsAre(0));
    call.SendText("dropped", 0);  // it was on its way
    call.SendFinish(FinishReason::kCancelled, 0);
    call.SendText("right", 1);
    call.SendFinish(FinishReason::kLength, 1);
    EXPECT_THAT(call.WaitCancelledIndices(), ElementsAre(0));
    cancelled = call.cancelled();
    call.End(absl::OkStatus());
  });
  ASSERT_EQ(Run(request), absl::OkStatus());
  EXPECT_FALSE(cancelled) << "the engine has ended all of it by itself";
  EXPECT_EQ(sink_->Text(0), "left ");
  EXPECT_EQ(sink_->Last(0)->finish, FinishReason::kStop);
  EXPECT_EQ(sink_->Last(0)->usage->completion_tokens, 9);
  EXPECT_EQ(sink_->Text(1), "right");
  EXPECT_EQ(sink_->Last(1)->finish, FinishReason::kLength);
}

TEST_F(ContinuationsTest, OneThatEndsBeforeTheEnginesCallIsThereIsCancelledThen) {
  const relay::GenerateRequest request = TwoThatStop();
  absl::Notification ended;
  engines_["a"].before_handle = [&] { ended.WaitForNotification(); };
  engines_["a"].SetScript([&](FakeCall& call) {
    call.SendText("STOP", 1);
    ended.Notify();
    EXPECT_THAT(call.WaitCancelledIndices(), ElementsAre(1));
    call.SendFinish(FinishReason::kLength, 0);
    call.SendFinish(FinishReason::kCancelled, 1);
    call.End(absl::OkStatus());
  });
  EXPECT_EQ(Run(request), absl::OkStatus());
}

}  // namespace
}  // namespace swiftcache::gateway
