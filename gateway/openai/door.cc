// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai/door.h"

#include <exception>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/traceparent.h"
#include "common/log/log.h"
#include "gateway/openai/api_error.h"
#include "gateway/openai/completion_handler.h"
#include "gateway/openai/response.h"

namespace swiftcache::gateway::openai {
namespace {

constexpr char kModelPath[] = "/v1/models/";
constexpr char kDoor[] = "http";

void SendError(HttpResponder& responder, const absl::Status& status, HttpHeaders headers = {}) {
  for (auto& header : ErrorHeaders(status)) headers.push_back(std::move(header));
  responder.Send(HttpStatusOf(status), kJson, ErrorBody(status), std::move(headers));
}

/// "%2F" -> "/"; anything else stays.
std::string PercentDecoded(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escaped =
        text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) && absl::ascii_isxdigit(text[i + 2]);
    out += escaped ? absl::HexStringToBytes(text.substr(i + 1, 2)) : std::string(1, text[i]);
    if (escaped) i += 2;
  }
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Door>> Door::Create(Options options, relay::Relay& relay, const Clock& clock) {
  if (options.id_prefix.empty()) return absl::InvalidArgumentError("openai: id_prefix is empty, wants a unique prefix");
  return std::unique_ptr<Door>(new Door(std::move(options), relay, clock));
}

Door::Door(Options options, relay::Relay& relay, const Clock& clock)
    : options_(std::move(options)),
      relay_(relay),
      clock_(clock),
      started_s_(absl::ToUnixSeconds(options_.wall_time())),
      answers_budget_(std::make_shared<ByteBudget>(options_.max_held_answer_bytes)),
      side_threads_(options_.side_threads) {}

std::vector<HttpRoute> Door::Routes() {
  auto generate = [this](Endpoint endpoint) {
    return [this, endpoint](HttpRequest http, std::shared_ptr<HttpResponder> responder) {
      Receive(endpoint, std::move(http), std::move(responder));
    };
  };
  return {
      {"GET", "/v1/models", [this](HttpRequest, std::shared_ptr<HttpResponder> responder) { ListModels(*responder); }},
      {"GET", absl::StrCat(kModelPath, "*"),
       [this](HttpRequest http, std::shared_ptr<HttpResponder> responder) { GetModel(http, *responder); }},
      {"POST", "/v1/completions", generate(Endpoint::kCompletions)},
      {"POST", "/v1/chat/completions", generate(Endpoint::kChat)}};
}

void Door::ListModels(HttpResponder& responder) {
  const absl::StatusOr<std::vector<relay::ModelInfo>> models = relay_.ListModels();
  if (!models.ok()) return SendError(responder, models.status());
  responder.Send(200, kJson, ModelList(*models, started_s_), {});
}

void Door::GetModel(const HttpRequest& http, HttpResponder& responder) {
  const std::string name = PercentDecoded(http.path.substr(std::string(kModelPath).size()));
  const absl::StatusOr<std::vector<relay::ModelInfo>> models = relay_.ListModels();
  if (!models.ok()) return SendError(responder, models.status());
  for (const relay::ModelInfo& model : *models) {
    if (model.name == name) return responder.Send(200, kJson, ModelEntry(model, started_s_), {});
  }
  SendError(responder,
            AboutField(absl::NotFoundError(absl::StrCat("model '", absl::CHexEscape(name),
                                                        "' is not served: GET /v1/models lists those that are")),
                       "model"));
}

void Door::Receive(Endpoint endpoint, HttpRequest http, std::shared_ptr<HttpResponder> responder) {
  const absl::Time arrived = clock_.Now();
  if (!SideThreads::IsLong(http.body.size())) return Generate(endpoint, http, std::move(responder), arrived);
  const auto request = std::make_shared<const HttpRequest>(std::move(http));  // shared: it is needed if it is refused
  const absl::Status status = side_threads_.Run(request->body.size(), [this, endpoint, arrived, request, responder] {
    try {
      Generate(endpoint, *request, responder, arrived);
    } catch (const std::exception& error) {  // what becomes of a responder that is dropped is a 500
      LOG(ERROR) << "a long request threw: " << error.what();
    }
  });
  if (!status.ok()) Refuse(*request, RequestIdOf(*request), *responder, status);
}

std::string Door::RequestIdOf(const HttpRequest& http) {
  const std::string_view named = http.Header("x-request-id");
  const std::string_view first = named.substr(0, named.find(','));  // of several, which proxies add
  return first.empty() ? absl::StrCat(options_.id_prefix, "-", next_id_.fetch_add(1)) : std::string(first);
}

void Door::Refuse(const HttpRequest& http, const std::string& request_id, HttpResponder& responder,
                  const absl::Status& why) {
  relay::GenerateRequest refused;
  refused.request_id = request_id;
  refused.traceparent = ParseTraceparent(http.Header("traceparent"));
  refused.door = kDoor;
  refused.client = http.client;
  relay_.Refused(std::move(refused), why);
  SendError(responder, why, {{"X-Request-Id", request_id}});
}

void Door::Generate(Endpoint endpoint, const HttpRequest& http, std::shared_ptr<HttpResponder> responder,
                    absl::Time arrived) {
  const std::string request_id = RequestIdOf(http);
  absl::StatusOr<ParsedRequest> parsed = Parse(endpoint, http, request_id, arrived);
  if (!parsed.ok()) return Refuse(http, request_id, *responder, parsed.status());
  std::make_shared<CompletionHandler>(parsed->answer, request_id, absl::ToUnixSeconds(options_.wall_time()),
                                      std::move(responder), answers_budget_)
      ->Run(relay_, std::move(parsed->prompts));
}

absl::StatusOr<ParsedRequest> Door::Parse(Endpoint endpoint, const HttpRequest& http, const std::string& request_id,
                                          absl::Time arrived) const {
  ASSIGN_OR_RETURN(ParsedRequest parsed, ParseRequest(endpoint, http.body, options_.limits));
  ReadHeaders(http, request_id, parsed, options_.limits);
  for (relay::GenerateRequest& request : parsed.prompts) {
    request.door = kDoor;
    request.client = http.client;
    request.arrived = arrived;
  }
  return parsed;
}

}  // namespace swiftcache::gateway::openai
