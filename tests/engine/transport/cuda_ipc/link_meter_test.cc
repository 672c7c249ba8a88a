// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/cuda_ipc/link_meter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/units.h"
#include "engine/backend/cuda/device_memory.h"
#include "tests/engine/transport/cuda_ipc/cuda_ipc_harness.h"
#include "tests/fakes/fake_clock.h"

namespace swiftcache::engine::transport::cuda_ipc {
namespace {

using backend::cuda::DeviceBytes;
using backend::cuda::DeviceCopy;

constexpr int64_t kBytes = 4 * kMiB;

// A GPU on which copies take time by where they come from, and no other time: a call, and what its bytes take.
class LinkMeterTest : public ::testing::Test {
 protected:
  LinkMeterTest()
      : driver_({.most_late_us = 0, .on_copy = [this](const DeviceCopy& copy) {
                   const bool from_lease = lease_.address() <= copy.from && copy.from < lease_.address() + kBytes;
                   const double part = static_cast<double>(copy.bytes) / kBytes;
                   if (from_lease) copied_bytes_ = std::max(copied_bytes_, copy.bytes);
                   if (from_lease && copy.bytes == LinkMeter::kBytes && ++lease_copies_ == LinkMeter::kTries) {
                     if (at_last_try_) at_last_try_();
                   }
                   clock_.Advance(call_time_ + part * (from_lease ? lease_time_ : own_time_));
                 }}) {
    lease_ = DeviceBytes::Allocate(driver_, kBytes).value();
    links_ = std::make_unique<LinkMeter>(driver_, clock_);
  }
  ~LinkMeterTest() override {
    links_.reset();
    lease_ = DeviceBytes();
    ExpectClean(driver_);
  }
  bool IsSlow(const std::string& donor = "donor", int64_t bytes = kBytes) {
    return links_->IsSlow(donor, lease_.address(), bytes);
  }

  FakeClock clock_;
  absl::Duration call_time_ = absl::Microseconds(12), own_time_ = absl::Microseconds(3);  // of kBytes
  absl::Duration lease_time_ = absl::Microseconds(3);
  int64_t lease_copies_ = 0, copied_bytes_ = 0;  // written by the driver's thread, read behind an event
  std::function<void()> at_last_try_;
  FakeCudaDriver driver_;
  DeviceBytes lease_;
  std::unique_ptr<LinkMeter> links_;
};

TEST_F(LinkMeterTest, ALinkOfLessThanAHundredGigabytesASecondIsSlow) {
  EXPECT_FALSE(IsSlow("the same GPU"));
  lease_time_ = absl::Microseconds(14);
  EXPECT_FALSE(IsSlow("over NVLink"));
  lease_time_ = absl::Microseconds(41);
  EXPECT_FALSE(IsSlow("just so fast"));
  lease_time_ = absl::Microseconds(43);
  EXPECT_TRUE(IsSlow("not quite"));
  lease_time_ = absl::Microseconds(80);
  EXPECT_TRUE(IsSlow("over PCIe"));
  EXPECT_EQ(copied_bytes_, LinkMeter::kBytes);
}

TEST_F(LinkMeterTest, AnEngineThatComputesMeanwhileChangesNothing) {
  own_time_ = absl::Microseconds(200);
  for (const int us : {90, 150, 200}) {
    lease_time_ = absl::Microseconds(us);
    EXPECT_TRUE(IsSlow("over PCIe, " + std::to_string(us)));
  }
  call_time_ = absl::Microseconds(150);
  lease_time_ = absl::Microseconds(14);
  EXPECT_FALSE(IsSlow("over NVLink, behind work of others"));
}

TEST_F(LinkMeterTest, TheFastestCopyCounts) {
  lease_time_ = absl::Microseconds(500);
  at_last_try_ = [this] { lease_time_ = absl::Microseconds(20); };
  EXPECT_FALSE(IsSlow());
}

TEST_F(LinkMeterTest, ADonorsLinkIsMeasuredOnceAMinute) {
  lease_time_ = absl::Microseconds(90);
  EXPECT_TRUE(IsSlow());
  const int64_t copies = lease_copies_;
  lease_time_ = absl::Microseconds(15);
  EXPECT_TRUE(IsSlow());
  EXPECT_EQ(lease_copies_, copies);
  EXPECT_FALSE(IsSlow("another"));
  clock_.Advance(LinkMeter::kKnown + absl::Seconds(1));
  EXPECT_FALSE(IsSlow());
}

TEST_F(LinkMeterTest, WhatIsTooSmallToTellIsFastUntilMoreIsLeased) {
  lease_time_ = absl::Microseconds(90);
  EXPECT_FALSE(IsSlow("donor", LinkMeter::kLeastBytes - 1));
  EXPECT_EQ(copied_bytes_, 0);
  EXPECT_TRUE(IsSlow("donor", LinkMeter::kLeastBytes));
  EXPECT_EQ(copied_bytes_, LinkMeter::kLeastBytes);
}

TEST_F(LinkMeterTest, WhateverCallOfTheDriverFailsTheLeaseIsReadInPlaceAndNothingIsLeftBehind) {
  lease_time_ = absl::Microseconds(90);
  int failed = 0;
  for (int64_t nth = 1;; ++nth, ++failed) {
    driver_.FailAt(nth);
    const bool slow = IsSlow("donor" + std::to_string(nth));
    if (!driver_.HasFailed()) {
      EXPECT_TRUE(slow);
      break;
    }
  }
  driver_.FailAt(0);
  EXPECT_GT(failed, 10);
}

}  // namespace
}  // namespace swiftcache::engine::transport::cuda_ipc
