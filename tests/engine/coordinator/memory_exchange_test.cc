// SPDX-License-Identifier: Apache-2.0
// Memory that takes long to be had: who waits for it, and who must not.
#include "engine/coordinator/memory_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/engine/coordinator/coordinator_fixture.h"

namespace swiftcache::engine::coordinator {
namespace {

using ::testing::HasSubstr;

// Memory is had when the test says so.
class MemoryExchangeTest : public CoordinatorTest {
 protected:
  MemoryExchangeTest() {
    transport_.on_exchange = [this](int64_t, int64_t bytes) {
      EXPECT_EQ(bytes, 2 * kBlockBytes);
      return Wait();
    };
    transport_.on_prepare = [this] { return Wait(); };
  }
  ~MemoryExchangeTest() override {
    SetThereIsMemory(true);
    coordinator_->Stop(absl::InfinitePast());
  }

  absl::Status Wait() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&there_is_memory_));
    return refusals_-- > 0 ? absl::ResourceExhaustedError("no memory") : absl::OkStatus();
  }
  void SetThereIsMemory(bool is) {
    absl::MutexLock lock(&mutex_);
    there_is_memory_ = is;
  }
  void Refuse(int64_t times) {
    absl::MutexLock lock(&mutex_);
    refusals_ = times;
  }
  // Up to where it waits for other memory.
  void ReleaseWithoutMemory(int64_t id) {
    SetThereIsMemory(false);
    coordinator_->OnReleased(kv::LeaseId(id));
    ASSERT_TRUE(transport_.log().WaitFor(At("Exchange", id)));
  }
  // Other memory is there when the deadline is over.
  void ExpectLate(int64_t id) {
    fake_clock_.Advance(kDeadline + absl::Milliseconds(1));
    SetThereIsMemory(true);
    ASSERT_TRUE(loop_.log().WaitFor(absl::StrCat("TakeBack ", id)));
    Settle();
    EXPECT_EQ(Metric("swiftcache_lease_late_total"), 1);
  }
  static constexpr absl::Duration kDeadline = absl::Milliseconds(50);  // of revocations
  static std::string At(const std::string& call, int64_t id) { return absl::StrCat(call, " ", 10 * id * kBlockBytes); }

  absl::Mutex mutex_;
  bool there_is_memory_ = true;
  int64_t refusals_ = 0;
};

TEST_F(MemoryExchangeTest, ALeaseIsGrantedOnceItHasMemoryOfItsOwn) {
  Start();
  SetThereIsMemory(false);
  ASSERT_NO_FATAL_FAILURE(Clear(7));
  ASSERT_TRUE(transport_.log().WaitFor(At("PrepareToLend", 7)));
  Settle();
  EXPECT_EQ(transport_.log().Count("Grant 7"), 0);
  SetThereIsMemory(true);
  EXPECT_TRUE(broker_.log().WaitFor("GRANTED 7"));
}

TEST_F(MemoryExchangeTest, WithoutMemoryOfItsOwnItIsNotGrantedAndGoesBackAsOtherMemory) {
  Start();
  Refuse(1);
  ASSERT_NO_FATAL_FAILURE(Clear(7));
  ASSERT_TRUE(broker_.log().WaitFor("RELEASED 7"));
  EXPECT_THAT(broker_.news().back().reason, HasSubstr("no memory"));
  EXPECT_EQ(transport_.log().Count("Grant 7"), 0);
  EXPECT_EQ(transport_.log().Count(At("Exchange", 7)), 1);
  EXPECT_EQ(loop_.log().Count("TakeBack 7"), 1);
}

TEST_F(MemoryExchangeTest, WhoIsWantedBackWhileItGetsMemoryGoesBack) {
  Start();
  SetThereIsMemory(false);
  ASSERT_NO_FATAL_FAILURE(Clear(7));
  ASSERT_TRUE(transport_.log().WaitFor(At("PrepareToLend", 7)));
  coordinator_->NeedBack(1, 2);
  Settle();
  SetThereIsMemory(true);
  ASSERT_TRUE(loop_.log().WaitFor("TakeBack 7"));
  EXPECT_EQ(transport_.log().Count("Fence 7"), 1);
  EXPECT_EQ(transport_.log().Count(At("Exchange", 7)), 1);
  EXPECT_EQ(broker_.log().Count("GRANTED 7"), 0);
}

TEST_F(MemoryExchangeTest, WhoIsWantedBackBeforeItGetsMemoryGoesBackWithoutIt) {
  Start();
  SetThereIsMemory(false);
  ASSERT_NO_FATAL_FAILURE(Clear(7));
  ASSERT_TRUE(transport_.log().WaitFor(At("PrepareToLend", 7)));
  ASSERT_NO_FATAL_FAILURE(Clear(8));
  ASSERT_NO_FATAL_FAILURE(Clear(9));
  coordinator_->NeedBack(6, 6);
  Settle();
  SetThereIsMemory(true);
  for (const int id : {7, 8, 9}) ASSERT_TRUE(loop_.log().WaitFor(absl::StrCat("TakeBack ", id)));
  for (const int id : {8, 9}) {
    EXPECT_EQ(transport_.log().Count(At("PrepareToLend", id)), 0);
    EXPECT_EQ(transport_.log().Count(At("Exchange", id)), 1);
  }
}

TEST_F(MemoryExchangeTest, WhatComesBackGoesBeforeLoansThatAreMadeReady) {
  Start();
  Lend(7);
  SetThereIsMemory(false);
  ASSERT_NO_FATAL_FAILURE(Clear(8));
  ASSERT_TRUE(transport_.log().WaitFor(At("PrepareToLend", 8)));
  ASSERT_NO_FATAL_FAILURE(Clear(9));
  coordinator_->OnReleased(kv::LeaseId(7));
  Settle();
  EXPECT_EQ(transport_.log().Count(At("PrepareToLend", 9)), 0);
  SetThereIsMemory(true);
  ASSERT_TRUE(transport_.log().WaitFor(At("PrepareToLend", 9)));
  ASSERT_TRUE(transport_.log().WaitFor(At("Exchange", 7)));
  const std::vector<std::string> calls = transport_.log().calls();
  EXPECT_LT(std::ranges::find(calls, At("Exchange", 7)), std::ranges::find(calls, At("PrepareToLend", 9)));
}

TEST_F(MemoryExchangeTest, WhatHasEndedIsNeitherTheLoopsNorOfferedAgainBeforeItIsOtherMemory) {
  Start();
  Lend(7);
  ASSERT_NO_FATAL_FAILURE(ReleaseWithoutMemory(7));
  Settle();
  EXPECT_EQ(transport_.log().Count("Fence 7"), 1) << "the fence comes first";
  EXPECT_EQ(loop_.log().Count("TakeBack 7"), 0);
  EXPECT_EQ(broker_.log().Count("RELEASED 7"), 0);
  SetThereIsMemory(true);
  ASSERT_TRUE(loop_.log().WaitFor("TakeBack 7"));
  EXPECT_TRUE(broker_.log().WaitFor("RELEASED 7"));
  EXPECT_EQ(Metric("swiftcache_remap_seconds_count"), 1);
}

TEST_F(MemoryExchangeTest, NoFenceWaitsForOtherMemory) {
  Start({.revoke_deadline = kDeadline});
  Lend(7), Lend(8);
  ASSERT_NO_FATAL_FAILURE(ReleaseWithoutMemory(7));
  coordinator_->NeedBack(4, 4);
  ASSERT_TRUE(transport_.log().WaitFor("SendRevoke 8"));
  fake_clock_.Advance(absl::Milliseconds(50));
  Settle();
  EXPECT_EQ(transport_.log().Count("Fence 8"), 1);
  EXPECT_EQ(loop_.log().Count("TakeBack 8"), 0);
  SetThereIsMemory(true);
  EXPECT_TRUE(loop_.log().WaitFor("TakeBack 8"));
}

// What is on its way back counts as that: it is not asked for once more.
TEST_F(MemoryExchangeTest, ANeedThatOtherMemoryWillMeetRevokesNothing) {
  Start();
  Lend(7), Lend(8);
  ASSERT_NO_FATAL_FAILURE(ReleaseWithoutMemory(7));
  coordinator_->NeedBack(2, 4);  // as the loop counts them, which has not heard of lease 7's end
  Settle();
  EXPECT_EQ(transport_.log().Count("SendRevoke 8"), 0);
}

TEST_F(MemoryExchangeTest, WhereThereIsNoOtherMemoryItIsTriedAgainUntilThereIs) {
  Start();
  Lend(7);
  Refuse(3);
  coordinator_->OnReleased(kv::LeaseId(7));
  ASSERT_TRUE(loop_.log().WaitFor("Withheld 7"));
  EXPECT_EQ(transport_.log().Count(At("Exchange", 7)), 1);
  for (const absl::Time give_up = absl::Now() + CallLog::kPatience; loop_.log().Count("TakeBack 7") == 0;) {
    ASSERT_LT(absl::Now(), give_up);
    fake_clock_.Advance(MemoryExchange::kAgain);
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(transport_.log().Count(At("Exchange", 7)), 4);
  EXPECT_EQ(loop_.log().Count("Withheld 7"), 1);
}

TEST_F(MemoryExchangeTest, WhatThereIsNoOtherMemoryForHoldsUpNothingElse) {
  Start();
  Lend(7), Lend(8);
  Refuse(1);
  coordinator_->OnReleased(kv::LeaseId(7));
  ASSERT_TRUE(loop_.log().WaitFor("Withheld 7"));
  coordinator_->OnReleased(kv::LeaseId(8));
  ASSERT_TRUE(loop_.log().WaitFor("TakeBack 8")) << "the clock stands still: lease 7 is not tried again";
  ASSERT_NO_FATAL_FAILURE(Lend(9));
  EXPECT_EQ(loop_.log().Count("Withheld 8"), 0);
  EXPECT_EQ(loop_.log().Count("TakeBack 7"), 0);
}

TEST_F(MemoryExchangeTest, WhatNobodyHasOpenedIsLateWhereItsMemoryIs) {
  Start({.revoke_deadline = kDeadline});
  ASSERT_NO_FATAL_FAILURE(Clear(7));
  ASSERT_TRUE(broker_.log().WaitFor("GRANTED 7"));
  SetThereIsMemory(false);
  coordinator_->OnLease(Given(7, lease::State::kRevoking));
  ASSERT_TRUE(transport_.log().WaitFor(At("Exchange", 7)));
  ASSERT_NO_FATAL_FAILURE(ExpectLate(7));
}

TEST_F(MemoryExchangeTest, WhatIsWantedBackWhileItIsGrantedIsLateWhereItsMemoryIs) {
  Start({.revoke_deadline = kDeadline});
  SetThereIsMemory(false);
  ASSERT_NO_FATAL_FAILURE(Clear(7));
  ASSERT_TRUE(transport_.log().WaitFor(At("PrepareToLend", 7)));
  coordinator_->OnLease(Given(7, lease::State::kRevoking));
  Settle();
  ASSERT_NO_FATAL_FAILURE(ExpectLate(7));
}

TEST_F(MemoryExchangeTest, TheEndWaitsForMemoryThatIsOnItsWayBackUntilItsDeadline) {
  Start();
  Lend(7);
  ASSERT_NO_FATAL_FAILURE(ReleaseWithoutMemory(7));
  std::thread memory([this] {
    EXPECT_TRUE(transport_.log().WaitFor("Fence 7"));
    SetThereIsMemory(true);
  });
  coordinator_->Stop(absl::InfiniteFuture());
  memory.join();
  EXPECT_EQ(broker_.log().Count("RELEASED 7"), 1);
  EXPECT_EQ(loop_.log().Count("TakeBack 7"), 1);
}

TEST_F(MemoryExchangeTest, TheEndComesAlthoughThereIsNoOtherMemory) {
  Start();
  Lend(7);
  Refuse(1000000);
  coordinator_->OnReleased(kv::LeaseId(7));
  ASSERT_TRUE(transport_.log().WaitFor(At("Exchange", 7)));
  const absl::Time begin = absl::Now();
  coordinator_->Stop(fake_clock_.Now() + CallLog::kPatience);
  EXPECT_LT(absl::Now() - begin, CallLog::kPatience / 2);
  EXPECT_EQ(loop_.log().Count("TakeBack 7"), 0);
}

}  // namespace
}  // namespace swiftcache::engine::coordinator
