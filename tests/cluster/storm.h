// SPDX-License-Identifier: Apache-2.0
// Revokes some lease every 3 ms; to begin with all of them.
//
//   Storm storm(hub);
//   storm.Begin(); ... storm.End();
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/fakes/lease_hub.h"

namespace swiftcache::engine::exec {

/// Ownership: borrows the hub.
class Storm {
 public:
  explicit Storm(LeaseHub& hub) : hub_(hub) {}

  void Begin() {
    hub_.SetLends(false);
    EXPECT_GT(hub_.num_leases(), 0);
    const absl::Time give_up = absl::Now() + absl::Seconds(30);
    while (hub_.num_leases() > 0 && absl::Now() < give_up) Blow(absl::Milliseconds(1));
    EXPECT_EQ(hub_.num_leases(), 0) << "revoked leases that did not end";
    hub_.SetLends(true);
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) Blow(absl::Milliseconds(3));
    });
  }
  void End() { thread_ = {}; }
  int64_t revocations() const { return revocations_; }

 private:
  void Blow(absl::Duration lull) {
    if (hub_.Revoke(rng_())) ++revocations_;
    absl::SleepFor(lull);
  }

  LeaseHub& hub_;
  std::mt19937_64 rng_{11};
  int64_t revocations_ = 0;
  std::jthread thread_;
};

}  // namespace swiftcache::engine::exec
