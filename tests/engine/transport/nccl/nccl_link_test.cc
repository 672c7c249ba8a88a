// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/nccl/nccl_link.h"

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "common/base/clock.h"
#include "tests/fakes/fake_cuda_driver.h"
#include "tests/fakes/fake_nccl.h"

namespace swiftcache::engine::transport::nccl {
namespace {

// A donor that fences breaks what it receives by; its borrower may just be telling the end of an earlier communicator.
TEST(NcclLinkTest, AWordOfAnEarlierCommunicatorTakesNoBreakAway) {
  constexpr absl::Duration kPatience = absl::Seconds(20);
  const RealClock clock;
  backend::cuda::FakeCudaDriver drivers[2];
  FakeNccl nccl[2] = {FakeNccl(drivers[0]), FakeNccl(drivers[1])};
  absl::Notification formed, goes_on, broken;
  NcclLink donor({.rank = 1, .patience = kPatience},
                 {.formed =
                      [&] {
                        formed.Notify();
                        goes_on.WaitForNotification();
                      },
                  .broken = [&](uint64_t number, const absl::Status& why) { broken.Notify(); }},
                 nccl[1], drivers[1], clock);
  NcclLink borrower({.rank = 0, .patience = kPatience},
                    {.join =
                         [&](uint64_t number, const NcclUniqueId& id) {
                           donor.Join(number, id);
                           return true;
                         },
                     .formed = [] {},
                     .broken = [](uint64_t number, const absl::Status& why) {}},
                    nccl[0], drivers[0], clock);
  borrower.Form();
  ASSERT_TRUE(formed.WaitForNotificationWithTimeout(kPatience));
  donor.Break(1);
  donor.Break(0);
  goes_on.Notify();
  EXPECT_TRUE(broken.WaitForNotificationWithTimeout(absl::Seconds(5)));
  borrower.Stop();
  donor.Stop();
}

}  // namespace
}  // namespace swiftcache::engine::transport::nccl
