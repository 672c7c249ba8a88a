// SPDX-License-Identifier: Apache-2.0
#include "engine/coordinator/broker_calls.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace swiftcache::engine::coordinator {
namespace {

BrokerCall Report(int64_t id) { return LeaseEvent{.lease = {.id = kv::LeaseId(id)}}; }
BrokerCall Wish(const char* key) { return LeaseRequest{.key = key}; }
BrokerCall Used(int64_t blocks) { return Window{.used_blocks = blocks}; }

std::string Name(const BrokerCall& call) {
  if (const auto* news = std::get_if<LeaseEvent>(&call)) return absl::StrCat("report ", news->lease.id.value());
  if (const auto* wish = std::get_if<LeaseRequest>(&call)) return absl::StrCat("wish ", wish->key);
  return absl::StrCat("window ", std::get<Window>(call).used_blocks);
}

std::vector<std::string> TakeAll(BrokerCalls& calls) {
  std::vector<std::string> names;
  while (const std::optional<BrokerCall> call = calls.TakeNext()) names.push_back(Name(*call));
  return names;
}

using Names = std::vector<std::string>;

TEST(BrokerCallsTest, CallsKeepTheirOrderAndOfWindowsThatWaitTheLastCounts) {
  BrokerCalls calls;
  for (const BrokerCall& call : {Report(1), Used(3), Wish("7"), Used(4), Report(2)}) calls.Push(call);
  EXPECT_EQ(calls.num_reports(), 2);
  EXPECT_EQ(TakeAll(calls), (Names{"report 1", "wish 7", "window 4", "report 2"}));
  EXPECT_TRUE(calls.empty());
}

TEST(BrokerCallsTest, WhoIsRegisteredAnewSaysItsLastWindowOnce) {
  BrokerCalls calls;
  calls.Registered();
  EXPECT_TRUE(calls.empty());
  calls.Push(Used(3));
  calls.Registered();
  EXPECT_EQ(TakeAll(calls), Names{"window 3"});
  calls.Registered();
  EXPECT_EQ(TakeAll(calls), Names{"window 3"});
}

// A proxy answers for a broker that is not there with what it likes.
TEST(BrokerCallsTest, UntilTheBrokerTakesOrRefusesThemAllButWishesAreRepeated) {
  for (const absl::Status& away :
       {absl::UnavailableError(""), absl::DeadlineExceededError(""), absl::ResourceExhaustedError(""),
        absl::CancelledError(""), absl::InternalError(""), absl::UnknownError(""), absl::UnimplementedError(""),
        absl::AbortedError(""), absl::UnauthenticatedError("")}) {
    EXPECT_TRUE(MustRepeat(Report(1), away));
    EXPECT_TRUE(MustRepeat(Used(1), away));
    EXPECT_FALSE(MustRepeat(Wish("1"), away));
  }
  for (const absl::Status& answer :
       {absl::OkStatus(), absl::InvalidArgumentError(""), absl::FailedPreconditionError(""),
        absl::PermissionDeniedError(""), absl::NotFoundError("")}) {
    EXPECT_FALSE(MustRepeat(Report(1), answer));
    EXPECT_FALSE(MustRepeat(Used(1), answer));
  }
}

class Hearing final : public LeaseBrokerEvents {
 public:
  void OnTerms(const LeaseTerms&) override { heard.emplace_back("terms"); }
  void OnLease(const lease::Lease&) override { heard.emplace_back("lease"); }
  void OnLeases(const std::vector<lease::Lease>&) override { heard.emplace_back("leases"); }
  void OnLeaseResponse(absl::StatusOr<LeaseResponse> answer) override {
    heard.push_back(absl::StrCat("answer ", answer.status().message()));
  }
  void OnScaleUp(int64_t, absl::StatusOr<std::vector<kv::LeaseId>>) override { heard.emplace_back("advice"); }
  void OnReportRefused(const LeaseEvent& news, const absl::Status& why) override {
    heard.push_back(absl::StrCat("refused ", news.lease.id.value(), " ", why.message()));
  }
  Names heard;
};

TEST(BrokerCallsTest, WhatFailsIsToldToWhoAskedAndAWindowToNobody) {
  Hearing events;
  for (const BrokerCall& call : {Report(1), Wish("7"), Used(3)}) {
    TellFailure(call, absl::OkStatus(), events);
    TellFailure(call, absl::NotFoundError("no"), events);
  }
  EXPECT_EQ(events.heard, (Names{"refused 1 no", "answer no"}));
}

}  // namespace
}  // namespace swiftcache::engine::coordinator
