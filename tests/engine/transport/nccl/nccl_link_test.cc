// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/nccl/nccl_link.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "engine/backend/cuda/device_memory.h"
#include "tests/engine/transport/nccl/nccl_harness.h"
#include "tests/fakes/fake_cuda_driver.h"
#include "tests/fakes/fake_nccl.h"

namespace swiftcache::engine::transport::nccl {
namespace {

// Both ends of one communicator.
class NcclLinkTest : public testing::Test {
 protected:
  static constexpr absl::Duration kPatience = absl::Seconds(20);
  ~NcclLinkTest() override {
    borrower_.Stop();
    donor_.Stop();
  }

  const RealClock clock_{};
  FakeCudaDriver drivers_[2];
  FakeNccl nccl_[2] = {FakeNccl(drivers_[0]), FakeNccl(drivers_[1])};
  absl::Notification formed_, goes_on_, broken_;  // the donor's
  NcclLink donor_{{.rank = 1, .patience = kPatience},
                  {.formed =
                       [&] {
                         formed_.Notify();
                         goes_on_.WaitForNotification();
                       },
                   .broken = [&](uint64_t number, const absl::Status& why) { broken_.Notify(); }},
                  nccl_[1],
                  drivers_[1],
                  clock_};
  NcclLink borrower_{{.rank = 0, .patience = kPatience},
                     {.join =
                          [&](uint64_t number, const NcclUniqueId& id) {
                            donor_.Join(number, id);
                            return true;
                          },
                      .formed = [] {},
                      .broken = [](uint64_t number, const absl::Status& why) {}},
                     nccl_[0],
                     drivers_[0],
                     clock_};
};

// Its other end may tell late of the end of an earlier communicator.
TEST_F(NcclLinkTest, AWordOfAnEarlierCommunicatorTakesNoBreakAway) {
  borrower_.Form();
  ASSERT_TRUE(formed_.WaitForNotificationWithTimeout(kPatience));
  donor_.Break(1);
  donor_.Break(0);
  goes_on_.Notify();
  EXPECT_TRUE(broken_.WaitForNotificationWithTimeout(absl::Seconds(5)));
}

TEST_F(NcclLinkTest, NoMoreIsReceivedAtOnceThanHasRoomToLand) {
  constexpr int kGroups = 5;
  constexpr int64_t kBytes = 1000;
  const auto kv = backend::cuda::DeviceBytes::Allocate(drivers_[0], kGroups * kBytes).value();
  std::vector<NcclGroup> sent(kGroups), received(kGroups);
  for (int i = 0; i < kGroups; ++i) {
    const uint64_t from = kv.address() + i * kBytes;
    std::memcpy(FakeCudaDriver::Host(from), Pattern(kBytes, i).data(), kBytes);
    sent[i].pieces = {{.run = {from, kBytes}}};
    received[i].pieces = {{.run = {0, kBytes}}};  // where it belongs is the batch's to know
  }
  absl::Notification hold, has_sent, has_received;
  nccl_[0].BeforeSends([&] { hold.WaitForNotification(); });
  const auto stores = std::make_shared<NcclBatch>(NcclDirection::kSend, sent);
  const auto lands = std::make_shared<NcclBatch>(NcclDirection::kReceive, received);
  std::vector<std::vector<std::byte>> landed;
  lands->accepted = {1};
  lands->admitted = lands->concluded = true;
  lands->land = [&](const NcclGroup& group) {
    const std::byte* const at = FakeCudaDriver::Host(group.landing);
    landed.push_back({at, at + kBytes});
  };
  lands->ended = [&](bool) { has_received.Notify(); };
  stores->announce = [&](uint64_t number) {
    lands->number = number;
    return donor_.Post(lands) && borrower_.Admit(*stores, {1}) && borrower_.Conclude(*stores);
  };
  stores->is_wanted = [] { return true; };
  stores->ended = [&](bool) { has_sent.Notify(); };
  goes_on_.Notify();
  ASSERT_TRUE(borrower_.Post(stores));
  EXPECT_TRUE(Eventually([&] { return nccl_[0].num_groups() == kGroups; }));
  EXPECT_TRUE(Eventually([&] { return nccl_[1].num_groups() == NcclLink::kLandings; }));
  absl::SleepFor(absl::Milliseconds(20));  // nor do the others follow
  EXPECT_EQ(nccl_[1].num_groups(), NcclLink::kLandings);
  hold.Notify();
  EXPECT_TRUE(has_received.WaitForNotificationWithTimeout(kPatience));
  EXPECT_TRUE(has_sent.WaitForNotificationWithTimeout(kPatience));
  ASSERT_EQ(landed.size(), kGroups);
  for (int i = 0; i < kGroups; ++i) EXPECT_EQ(landed[i], Pattern(kBytes, i)) << i;
  nccl_[0].BeforeSends(nullptr);
}

}  // namespace
}  // namespace swiftcache::engine::transport::nccl
