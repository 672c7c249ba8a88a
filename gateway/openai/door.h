// SPDX-License-Identifier: Apache-2.0
// The OpenAI HTTP door of the gateway: GET /v1/models, POST /v1/completions, POST /v1/chat/completions.
//
//   ASSIGN_OR_RETURN(auto door, Door::Create({.id_prefix = "gw1-http"}, relay, clock));
//   ASSIGN_OR_RETURN(auto server, HttpServer::Create(http_options, door->Routes()));
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/byte_budget.h"
#include "common/base/clock.h"
#include "common/base/wall_time.h"
#include "common/http/http_server.h"
#include "common/sync/side_threads.h"
#include "gateway/openai/parse_request.h"
#include "gateway/relay/relay.h"

namespace swiftcache::gateway::openai {

/// Validates, calls the relay, translates.
/// Thread-safety: safe. Ownership: borrows relay and clock, owns the threads on which long bodies are handled; must
/// outlive the server that has its routes.
/// Errors: go to clients as {"error":{"message","type","param","code"}}. A client that leaves cancels its request.
class Door {
 public:
  struct Options {
    std::string id_prefix = "http";  // of request ids that the door makes where X-Request-Id is absent
    HttpRequestLimits limits = {};
    std::function<absl::Time()> wall_time = WallTimeNow;  // for `created`; not null
    int64_t max_held_answer_bytes = int64_t{512} << 20;   // echoes, and answers that are not streamed; beyond it 429
    SideThreads::Options side_threads = {};               // for long bodies; where too much waits for them 429
  };
  /// Errors: INVALID_ARGUMENT (empty prefix).
  static absl::StatusOr<std::unique_ptr<Door>> Create(Options options, relay::Relay& relay, const Clock& clock);

  std::vector<HttpRoute> Routes();

 private:
  Door(Options options, relay::Relay& relay, const Clock& clock);

  void ListModels(HttpResponder& responder);
  void GetModel(const HttpRequest& http, HttpResponder& responder);
  void Receive(Endpoint endpoint, HttpRequest http, std::shared_ptr<HttpResponder> responder);
  std::string RequestIdOf(const HttpRequest& http);
  void Refuse(const HttpRequest& http, const std::string& request_id, HttpResponder& responder,
              const absl::Status& why);
  void Generate(Endpoint endpoint, const HttpRequest& http, std::shared_ptr<HttpResponder> responder,
                absl::Time arrived);
  absl::StatusOr<ParsedRequest> Parse(Endpoint endpoint, const HttpRequest& http, const std::string& request_id,
                                      absl::Time arrived) const;

  const Options options_;
  relay::Relay& relay_;
  const Clock& clock_;
  const int64_t started_s_;
  std::atomic<int64_t> next_id_{1};
  const std::shared_ptr<ByteBudget> answers_budget_;  // of handlers, too, which calls may keep longer than it lives
  SideThreads side_threads_;                          // last: its work uses the rest
};

}  // namespace swiftcache::gateway::openai
