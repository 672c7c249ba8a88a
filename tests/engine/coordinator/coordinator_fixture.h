// SPDX-License-Identifier: Apache-2.0
// The coordinator's thread between fakes of its three neighbours. Where the clock is a fake one, a message wakes the
// thread after it was moved; what must happen by itself is tested by the real clock.
//
//   TEST_F(CoordinatorTest, AGrantedLeaseIsOpened) {
//     Start();
//     Take(9);
//     ASSERT_TRUE(loop_.log().WaitFor("Use 9 of 2"));
//   }
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/coordinator/coordinator.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_transport.h"
#include "tests/fakes/recording_lease_broker.h"
#include "tests/fakes/recording_loop.h"

namespace swiftcache::engine::coordinator {

inline constexpr char kMe[] = "me";
inline constexpr int64_t kBlockBytes = 4096;

class CoordinatorTest : public testing::Test {
 protected:
  explicit CoordinatorTest(const Clock* clock = nullptr) : clock_(clock == nullptr ? fake_clock_ : *clock) {}

  Coordinator& Start(Coordinator::Options options = {}) {
    options.instance_id = kMe;
    options.num_blocks = 1000;
    options.block_bytes = kBlockBytes;
    coordinator_ = std::make_unique<Coordinator>(options, clock_, registry_);
    coordinator_->Start(&transport_, &broker_, loop_.push());
    return *coordinator_;
  }
  ~CoordinatorTest() override {
    if (coordinator_) coordinator_->Stop(absl::InfinitePast());
  }

  static lease::Lease Lease(int64_t id, lease::State state) {
    return {.id = kv::LeaseId(id),
            .extent = {.first_block = 10 * id, .num_blocks = 2},
            .num_bytes = 2 * kBlockBytes,
            .borrower_blocks = 2,
            .epoch = kv::Epoch(1),
            .state = state,
            .channel = "donor-channel",
            .capability = "secret"};
  }
  // This engine gives it to another.
  static lease::Lease Given(int64_t id, lease::State state = lease::State::kOffered) {
    lease::Lease lease = Lease(id, state);
    lease.donor_instance = kMe;
    lease.borrower_instance = absl::StrCat("borrower of ", id);
    lease.borrower_model = "chat";
    return lease;
  }
  // This engine takes it of another.
  static lease::Lease Taken(int64_t id, lease::State state = lease::State::kGranted) {
    lease::Lease lease = Lease(id, state);
    lease.donor_instance = "other";
    lease.borrower_instance = kMe;
    return lease;
  }
  // Up to where the extent is in use by nobody.
  void Clear(int64_t id) {
    coordinator_->OnLease(Given(id));
    ASSERT_TRUE(loop_.log().WaitFor(absl::StrCat("Clear ", id)));
    coordinator_->Cleared(kv::LeaseId(id), true);
  }
  // Up to where the borrower uses it.
  void Lend(int64_t id) {
    ASSERT_NO_FATAL_FAILURE(Clear(id));
    ASSERT_TRUE(broker_.log().WaitFor(absl::StrCat("GRANTED ", id)));
    coordinator_->OnBorrowerOpened(kv::LeaseId(id));
  }
  void Take(int64_t id) {
    coordinator_->OnLease(Taken(id));
    ASSERT_TRUE(transport_.log().WaitFor(absl::StrCat("Open ", id)));
    coordinator_->OnOpened(kv::LeaseId(id), transport_.AddLease(kv::LeaseId(id), 2 * kBlockBytes, kv::Epoch(1)));
    ASSERT_TRUE(loop_.log().WaitFor(absl::StrCat("Use ", id, " of 2")));
    ASSERT_TRUE(coordinator_->step_reads().Accept(kv::LeaseId(id)));
  }
  // The thread has handled everything that was said before, by the present time.
  void Settle() {
    const int64_t mark = ++marks_;
    coordinator_->ReportWindow({.used_blocks = 1000000 + mark});
    ASSERT_TRUE(broker_.log().WaitFor(absl::StrCat("Window ", 1000000 + mark)));
    coordinator_->ReportWindow({.used_blocks = 2000000 + mark});  // behind the tick that follows the first
    ASSERT_TRUE(broker_.log().WaitFor(absl::StrCat("Window ", 2000000 + mark)));
  }
  double Metric(const std::string& name) const {
    const std::string text = registry_.Serialize();
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }

  FakeClock fake_clock_;
  const Clock& clock_;
  Metrics registry_;
  transport::FakeTransport transport_;
  RecordingLeaseBroker broker_;
  RecordingLoop loop_;
  int64_t marks_ = 0;
  std::unique_ptr<Coordinator> coordinator_;
};

}  // namespace swiftcache::engine::coordinator
