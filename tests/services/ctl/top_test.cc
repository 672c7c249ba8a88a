// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>

#include "common/rpc/server.h"
#include "services/ctl/commands.h"
#include "tests/fakes/fake_broker_service.h"

namespace swiftcache::services::ctl {
namespace {

using fakes::Snapshot;
using ::testing::HasSubstr;

TEST(TopTest, WhoIsTooSlowForWhatChangesAtOnceGetsTheTablesAnew) {
  fakes::FakeBrokerService broker;
  broker.end_of_script = {grpc::StatusCode::RESOURCE_EXHAUSTED, "the reader is too slow for the changes; watch again"};
  broker.Play({Snapshot("b1", 1, {"first"})}, /*stay_open=*/false);
  broker.Play({Snapshot("b1", 1, {"second"})});
  auto server = RpcServer::Create({.listen = "127.0.0.1:0"}, {&broker});
  ASSERT_TRUE(server.ok()) << server.status();
  CLI::App app;
  const Addresses addresses{.broker = (*server)->address()};
  Command top;
  AddTop(app, addresses, top);
  app.parse("top --frames=6 -o json");
  testing::internal::CaptureStdout();
  absl::Status ran = top();
  for (int tries = 1; tries < 20 && absl::IsUnavailable(ran); ++tries) ran = top();  // not connected yet
  EXPECT_EQ(ran, absl::OkStatus());
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr(R"({"engine":"second")"));
  broker.Stop();
}

}  // namespace
}  // namespace swiftcache::services::ctl
