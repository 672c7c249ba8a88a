// SPDX-License-Identifier: Apache-2.0
// A donor in each state of its one lease, and its actions in words.
//
//   Donor donor = ActiveDonor();
//   donor.Revoke(kId, "own need", kStart);
//   EXPECT_THAT(Take(donor), ElementsAre("revoke 1 in 50ms"));
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/lease/donor.h"

namespace swiftcache::engine::lease {

inline const absl::Time kStart = absl::FromUnixSeconds(1000);
inline constexpr absl::Duration kDeadline = absl::Milliseconds(50), kTtl = absl::Seconds(10);

inline Lease MakeLease(int64_t id, int64_t first_block = 90, int64_t num_blocks = 10) {
  return {.id = kv::LeaseId(id),
          .donor = "summer",
          .donor_instance = "summer-1",
          .borrower = "chat",
          .borrower_instance = "chat-1",
          .borrower_model = "chat-model",
          .extent = {first_block, num_blocks},
          .num_bytes = num_blocks * 4096,
          .borrower_blocks = num_blocks / 2,
          .channel = "/run/summer.sock",
          .capability = "secret"};
}

/// An action in a few words.
struct Words {
  std::string operator()(const Donor::ClearExtent& a) { return absl::StrCat("clear ", a.lease.id.value()); }
  std::string operator()(const Donor::StopGranting& a) { return absl::StrCat("stop granting ", a.lease.id.value()); }
  std::string operator()(const Donor::StopClearing& a) { return absl::StrCat("stop clearing ", a.id.value()); }
  std::string operator()(const Donor::Grant& a) { return absl::StrCat("grant ", a.lease.id.value()); }
  std::string operator()(const Donor::SendRenewed& a) { return absl::StrCat("renewed ", a.id.value()); }
  std::string operator()(const Donor::SendRevoke& a) {
    return absl::StrCat("revoke ", a.id.value(), " in ", absl::FormatDuration(a.time_left));
  }
  std::string operator()(const Donor::Fence& a) { return absl::StrCat("fence ", a.id.value()); }
  std::string operator()(const Donor::TakeBack& a) {
    return absl::StrCat("take ", a.id.value(), a.fenced ? " fenced" : "");
  }
  std::string operator()(const Donor::Say& a) {
    const int64_t id = a.lease.id.value();
    if (a.lease.state == State::kGranted) return absl::StrCat("GRANTED ", id, " epoch ", a.lease.epoch.value());
    return absl::StrCat(a.lease.state == State::kFenced ? "FENCED " : "RELEASED ", id);
  }
};

/// What the donor wants done, in words.
inline std::vector<std::string> Take(Donor& donor) {
  std::vector<std::string> words;
  for (const Donor::Action& action : donor.TakeActions()) words.push_back(std::visit(Words(), action));
  EXPECT_TRUE(donor.CheckInvariants().ok()) << donor.CheckInvariants();
  return words;
}

inline constexpr kv::LeaseId kId(1);

inline constexpr int64_t kArenaBlocks = 100;
inline Donor NewDonor() {
  return Donor({.instance_id = "summer-1",
                .num_blocks = kArenaBlocks,
                .block_bytes = 4096,
                .revoke_deadline = kDeadline,
                .ttl = kTtl});
}
inline Donor ClearingDonor() {
  Donor donor = NewDonor();
  donor.Offered(MakeLease(1), kStart);
  EXPECT_THAT(Take(donor), ::testing::ElementsAre("clear 1"));
  return donor;
}
inline Donor GrantingDonor() {
  Donor donor = ClearingDonor();
  donor.Cleared(kId, true, kStart);
  EXPECT_THAT(Take(donor), ::testing::ElementsAre("grant 1"));
  return donor;
}
inline Donor GrantedDonor() {
  Donor donor = GrantingDonor();
  donor.Granted(kId, kv::Epoch(7), kStart);
  EXPECT_THAT(Take(donor), ::testing::ElementsAre("GRANTED 1 epoch 7"));
  return donor;
}
inline Donor ActiveDonor() {
  Donor donor = GrantedDonor();
  donor.BorrowerOpened(kId, kStart);
  EXPECT_THAT(Take(donor), ::testing::IsEmpty());
  return donor;
}
inline Donor RevokingDonor() {
  Donor donor = ActiveDonor();
  donor.Revoke(kId, "own need", kStart);
  EXPECT_THAT(Take(donor), ::testing::ElementsAre("revoke 1 in 50ms"));
  return donor;
}

/// Offers, grants and opens one lease more.
inline void Lend(Donor& donor, const Lease& lease) {
  donor.Offered(lease, kStart);
  donor.Cleared(lease.id, true, kStart);
  donor.Granted(lease.id, kv::Epoch(7), kStart);
  donor.BorrowerOpened(lease.id, kStart);
  donor.TakeActions();
}

}  // namespace swiftcache::engine::lease
