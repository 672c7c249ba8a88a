// SPDX-License-Identifier: Apache-2.0
#include "gateway/relay/access_log.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/fakes/log_lines.h"
#include "tests/gateway/relay/relay_fixture.h"

namespace swiftcache::gateway {
namespace {

using fakes::FakeCall;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;

class AccessLogTest : public RelayFixture {
 protected:
  relay::GenerateRequest Request(const std::string& prompt) {
    relay::GenerateRequest request = Prompt(prompt);
    request.request_id = "r1";
    request.traceparent = "00-4bf9";
    request.door = "grpc";
    request.client = "127.0.0.1:4711";
    return request;
  }
  /// The lines that say how a request ended.
  std::vector<std::string> Accesses() {
    std::vector<std::string> lines = log_.lines();
    std::erase_if(lines, [](const std::string& line) {
      return !absl::EndsWith(line, " request ended") && !absl::EndsWith(line, " request refused");
    });
    return lines;
  }

  fakes::LogLines log_;
};

TEST_F(AccessLogTest, ARequestHasOneLineWithAllButItsTexts) {
  Serve({"a"});
  ASSERT_EQ(Run(Request("a secret")), absl::OkStatus());
  EXPECT_THAT(Accesses(),
              ElementsAre(MatchesRegex(
                  "request_id=r1 trace=00-4bf9 model=m door=grpc client=127.0.0.1:4711 code=OK engine=a attempts=1 "
                  "prompt_tokens=8 cached_tokens=3 completion_tokens=6 text_bytes=5 ttft_ms=[0-9.e-]+ "
                  "e2e_ms=[0-9.e-]+ request ended")));
  for (const std::string& line : log_.lines()) {
    EXPECT_THAT(line, Not(HasSubstr("secret")));
    EXPECT_THAT(line, Not(HasSubstr("hello")));
  }
}

TEST_F(AccessLogTest, CachedTokensAreThoseOfTheFirstContinuation) {
  Serve({"a"});
  engines_["a"].SetScript([](FakeCall& call) {
    for (const int32_t index : {1, 0}) {
      fleet::EngineEvent event;
      event.index = index;
      event.token_ids = fakes::Bytes("x");
      event.finish = fleet::FinishReason::kStop;
      event.usage.emplace().cached_local_tokens = index;
      call.Send(std::move(event));
    }
    call.End(absl::OkStatus());
  });
  relay::GenerateRequest request = Request("x");
  request.sampling.n = 2;
  ASSERT_EQ(Run(std::move(request)), absl::OkStatus());
  EXPECT_THAT(Accesses(), ElementsAre(HasSubstr(" cached_tokens=0 ")));
}

TEST_F(AccessLogTest, ARequestThatFailsSaysWhereAndWhy) {
  Serve({"a", "b"});
  engines_["a"].SetScript(fakes::DieAfter(0));
  engines_["b"].SetScript(fakes::DieAfter(2));
  ASSERT_FALSE(Run(Request("x")).ok());
  const std::vector<std::string> lines = Accesses();
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0], HasSubstr("code=UNAVAILABLE engine=b attempts=2 prompt_tokens=1 cached_tokens=0 "
                                  "completion_tokens=2 text_bytes=2 ttft_ms="));
  EXPECT_THAT(lines[0], HasSubstr(" error=\"engine b was lost after 2 tokens were sent (Socket closed); "));
}

TEST_F(AccessLogTest, ARequestThatADoorRefusesGetsAnIdWhereItHasNone) {
  relay::GenerateRequest request = Request("");
  request.request_id.clear();
  relay_->Refused(request, absl::InvalidArgumentError("top_p is 7"));
  EXPECT_THAT(Accesses(), ElementsAre(MatchesRegex("request_id=[a-z0-9]+-1 trace=00-4bf9 .* request refused")));
}

TEST_F(AccessLogTest, ARefusedRequestHasItsLineToo) {
  Serve({"a"});
  relay::GenerateRequest request = Request("x");
  request.model = "n\nE1121 forged";
  ASSERT_FALSE(Run(request).ok());
  EXPECT_THAT(Accesses(), ElementsAre(MatchesRegex("request_id=r1 trace=00-4bf9 door=grpc client=127.0.0.1:4711 "
                                                   "code=NOT_FOUND e2e_ms=[0-9.e-]+ error=\"model [^\n]+\" "
                                                   "request refused")));
}

TEST_F(AccessLogTest, ARequestThatNoEngineCanTakeIsRefused) {
  Serve({"a"});
  fleet::EngineStatus draining = Ready("a");
  draining.info.state = fleet::EngineState::kDraining;
  fleet_->OnUpdate(draining);
  ASSERT_FALSE(Run(Request("x")).ok());
  EXPECT_THAT(Accesses(), ElementsAre(HasSubstr("model=m door=grpc client=127.0.0.1:4711 code=UNAVAILABLE e2e_ms=")));
}

TEST_F(AccessLogTest, WhatADoorRefusesIsLoggedAndItsIdCutIfItIsLong) {
  relay::GenerateRequest request = Request("");
  request.request_id = std::string(300, 'i');
  relay_->Refused(request, absl::InvalidArgumentError("top_p is 7"));
  EXPECT_THAT(Accesses(), ElementsAre(MatchesRegex("request_id=i{256} trace=00-4bf9 door=grpc client=127.0.0.1:4711 "
                                                   "code=INVALID_ARGUMENT e2e_ms=[0-9.e-]+ error=\"top_p is 7\" "
                                                   "request refused")));
}

}  // namespace
}  // namespace swiftcache::gateway
