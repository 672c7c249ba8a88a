// SPDX-License-Identifier: Apache-2.0
// A borrower in each state of its one lease, and its actions in words. Of a namespace of its own: a donor's harness has
// the same names.
//
//   Borrower borrower = ActiveBorrower();
//   borrower.Revoked(kId, kLeft, kStart);
//   EXPECT_THAT(Take(borrower), ElementsAre("drain 1"));
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/lease/borrower.h"

namespace swiftcache::engine::lease::of_borrower {

inline const absl::Time kStart = absl::FromUnixSeconds(1000);
inline constexpr absl::Duration kTtl = absl::Seconds(9), kDrain = absl::Milliseconds(50),
                                kLeft = absl::Milliseconds(40);
inline constexpr kv::LeaseId kId(1);

inline Lease MakeLease(int64_t id) {
  return {.id = kv::LeaseId(id),
          .donor = "summer",
          .donor_instance = "summer-1",
          .borrower = "chat",
          .borrower_instance = "chat-1",
          .extent = {90, 10},
          .num_bytes = 40960,
          .borrower_blocks = 5,
          .epoch = kv::Epoch(7),
          .state = State::kGranted,
          .channel = "/run/summer.sock",
          .capability = "secret"};
}

/// An action in a few words.
struct Words {
  std::string operator()(const Borrower::Open& a) { return absl::StrCat("open ", a.lease.id.value()); }
  std::string operator()(const Borrower::Use& a) { return absl::StrCat("use ", a.lease.id.value()); }
  std::string operator()(const Borrower::SendRenewal& a) { return absl::StrCat("renew ", a.id.value()); }
  std::string operator()(const Borrower::Drain& a) { return absl::StrCat("drain ", a.id.value()); }
  std::string operator()(const Borrower::SendRelease& a) { return absl::StrCat("release ", a.id.value()); }
  std::string operator()(const Borrower::Lose& a) { return absl::StrCat("lose ", a.id.value()); }
  std::string operator()(const Borrower::Close& a) { return absl::StrCat("close ", a.id.value()); }
};

/// What the borrower wants done, in words.
inline std::vector<std::string> Take(Borrower& borrower) {
  std::vector<std::string> words;
  for (const Borrower::Action& action : borrower.TakeActions()) words.push_back(std::visit(Words(), action));
  EXPECT_TRUE(borrower.CheckInvariants().ok()) << borrower.CheckInvariants();
  return words;
}

inline Borrower NewBorrower() {
  return Borrower({.instance_id = "chat-1", .block_bytes = 8192, .ttl = kTtl, .drain = kDrain});
}
inline Borrower OpeningBorrower() {
  Borrower borrower = NewBorrower();
  borrower.Granted(MakeLease(1), kStart);
  EXPECT_THAT(Take(borrower), testing::ElementsAre("open 1"));
  return borrower;
}
inline Borrower ActiveBorrower() {
  Borrower borrower = OpeningBorrower();
  borrower.Opened(kId, true, kStart);
  EXPECT_THAT(Take(borrower), testing::ElementsAre("use 1"));
  return borrower;
}
inline Borrower DrainingBorrower() {
  Borrower borrower = ActiveBorrower();
  borrower.Revoked(kId, kLeft, kStart);
  EXPECT_THAT(Take(borrower), testing::ElementsAre("drain 1"));
  return borrower;
}
inline Borrower LosingBorrower() {
  Borrower borrower = ActiveBorrower();
  borrower.DonorGone(kId, kStart);
  EXPECT_THAT(Take(borrower), testing::ElementsAre("lose 1"));
  return borrower;
}

}  // namespace swiftcache::engine::lease::of_borrower
