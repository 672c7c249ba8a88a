// SPDX-License-Identifier: Apache-2.0
// The door over real HTTP on a free port, with a relay that the test plays.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/http/http_server.h"
#include "gateway/openai/door.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_relay.h"
#include "tests/fakes/raw_http_client.h"

namespace swiftcache::gateway::openai {

using fakes::FakeCall;
using fakes::FakeRelay;
using fakes::RawHttpClient;
using nlohmann::json;

inline constexpr char kChatPath[] = "/v1/chat/completions";
inline constexpr char kCompletionsPath[] = "/v1/completions";

inline json ChatBody(json more = json::object()) {
  json body = {{"model", "m"}, {"messages", {{{"role", "user"}, {"content", "hello"}}}}};
  body.update(more);
  return body;
}
inline json CompletionBody(json more = json::object()) {
  json body = {{"model", "m"}, {"prompt", "hello"}};
  body.update(more);
  return body;
}

class DoorFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    Door::Options door_options{.id_prefix = "gw", .wall_time = [this] { return wall_.Now(); }};
    door_options.side_threads = side_threads_;
    auto door = Door::Create(std::move(door_options), relay_, clock_);
    ASSERT_TRUE(door.ok()) << door.status();
    door_ = std::move(door).value();
    HttpServer::Options options{.listen = "127.0.0.1:0", .max_body_bytes = 16 << 20, .threads = 2};
    options.burst_time = absl::Minutes(1);  // what comes at once may take a while, on a busy machine
    auto server = HttpServer::Create(options, door_->Routes());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(server).value();
    client_ = std::make_unique<RawHttpClient>(server_->address());
  }
  void TearDown() override {
    client_.reset();
    server_->Stop(absl::InfinitePast());
  }

  fakes::RawResponse Post(const std::string& path, const std::string& body, const std::string& headers = "") {
    client_->SendRequest("POST", path, body, headers);
    auto response = client_->ReadResponse();
    EXPECT_TRUE(response && response->complete);
    return response.value_or(fakes::RawResponse{});
  }
  fakes::RawResponse Post(const std::string& path, const json& body, const std::string& headers = "") {
    return Post(path, body.dump(), headers);
  }
  json PostForJson(const std::string& path, const json& body) {
    const auto response = Post(path, body);
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body, nullptr, false);
  }

  /// The objects of a stream; checks each line's form. The last one must be [DONE], unless the stream ends in an error.
  static std::vector<json> Events(const std::string& body) {
    std::vector<json> events;
    bool done = false;
    for (size_t at = 0; at < body.size();) {
      const size_t end = body.find("\n\n", at);
      EXPECT_NE(end, std::string::npos) << "an event without its end: " << body.substr(at);
      if (end == std::string::npos) break;
      const std::string line = body.substr(at, end - at);
      EXPECT_TRUE(absl::StartsWith(line, "data: ")) << line;
      EXPECT_FALSE(done) << "an event after [DONE]: " << line;
      EXPECT_EQ(line.find('\n'), std::string::npos) << line;
      done = line == "data: [DONE]";
      if (!done) events.push_back(json::parse(line.substr(6)));
      at = end + 2;
    }
    EXPECT_TRUE(done || (!events.empty() && events.back().contains("error"))) << body;
    return events;
  }

  FakeRelay relay_;
  FakeClock clock_, wall_;
  SideThreads::Options side_threads_;  // set before SetUp
  std::unique_ptr<Door> door_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<RawHttpClient> client_;
};

}  // namespace swiftcache::gateway::openai
