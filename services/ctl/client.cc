// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/client.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "common/base/status_macros.h"
#include "common/base/wall_time.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "services/ctl/commands.h"
#include "services/ctl/complaint.h"

namespace swiftcache::services::ctl {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(50);
constexpr absl::Duration kShortestSpeed = absl::Milliseconds(50);  // tokens over less time are no speed

int64_t Cached(const v1::Usage& usage) {
  return usage.cached_tokens().local() + usage.cached_tokens().donor() + usage.cached_tokens().host();
}

// Adds one message of the stream that came `since_start` after the request went out.
void Count(const v1::GenerateResponse& response, absl::Duration since_start, absl::Duration& last, Turn& turn) {
  if (response.index() == 0) turn.text += response.text();
  if (response.has_usage()) {
    turn.prompt_tokens = response.usage().prompt_tokens();
    turn.cached_tokens = std::max(turn.cached_tokens, Cached(response.usage()));
    turn.leased_tokens = std::max<int64_t>(turn.leased_tokens, response.usage().cached_tokens().donor());
  }
  if (response.token_ids().empty()) return;
  if (turn.tokens == 0) {
    turn.time_to_first_token = since_start;
  } else {
    turn.gaps.push_back(since_start - last);
  }
  last = since_start;
  turn.tokens += response.token_ids_size();
}

// `model`, or the one that is served. NOT_FOUND: it is not served, or none is.
absl::StatusOr<std::string> Choose(const std::string& model, const absl::StatusOr<std::vector<std::string>>& served) {
  RETURN_IF_ERROR(served.status());
  if (model.empty() && served->size() == 1) return served->front();
  if (!model.empty() && std::count(served->begin(), served->end(), model) > 0) return model;
  const std::string list = served->empty() ? "no model; is an engine ready, and at the broker that the gateway hears?"
                                           : absl::StrJoin(*served, ", ");
  if (!model.empty()) return absl::NotFoundError(absl::StrCat("model \"", model, "\" is not served; served: ", list));
  if (served->empty())
    return absl::NotFoundError(
        "the gateway serves no model; is an engine ready, and at the broker that the gateway hears?");
  return absl::InvalidArgumentError(absl::StrCat("--model is missing, wants one of: ", list));
}

}  // namespace

double Turn::tokens_per_second() const {
  const double seconds = absl::ToDoubleSeconds(total - time_to_first_token);
  return tokens > 1 && seconds > 0 ? static_cast<double>(tokens - 1) / seconds : 0;
}

std::string Turn::Summary() const {
  const bool has_speed = tokens > 1 && total - time_to_first_token >= kShortestSpeed;
  const std::string speed = has_speed ? absl::StrFormat(", %.1f tokens/s", tokens_per_second()) : "";
  const std::string leased = leased_tokens > 0 ? absl::StrCat(", ", leased_tokens, " of them in leased memory") : "";
  return absl::StrFormat("ttft %.1f ms%s, %d tokens; prompt %d tokens, %d from the cache%s",
                         absl::ToDoubleMilliseconds(time_to_first_token), speed, tokens, prompt_tokens, cached_tokens,
                         leased);
}

Client::Client(const std::string& gateway)
    : address_(gateway), channel_(CreateRpcChannel(gateway, {})), stub_(v1::GenerateService::NewStub(channel_)) {}

// A gateway passes on errors about its engines, such as "failed to connect"; if the channel is connected, the error is
// the gateway's.
absl::Status Client::Explain(const grpc::Status& status) const {
  const absl::Status plain = FromGrpc(status);
  if (SpeaksHttp1(plain)) return NoGateway(plain, absl::StatusCode::kUnimplemented);
  const bool nobody = absl::IsUnavailable(plain) &&
                      channel_->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_READY &&
                      plain.message().find("failed to connect") != absl::string_view::npos;
  if (!nobody) return plain;
  return absl::UnavailableError(absl::StrCat("no gateway answers at ", address_, "; start one or set --gateway"));
}

absl::Status Client::NoGateway(const absl::Status& status, absl::StatusCode code) const {
  return absl::Status(code, NotThatServer("gateway", address_, Addresses().gateway, status));
}

absl::StatusOr<std::vector<std::string>> Client::Models() {
  grpc::ClientContext context;
  v1::ListModelsResponse response;
  const grpc::Status status = stub_->ListModels(&context, v1::ListModelsRequest(), &response);
  const absl::Status plain = FromGrpc(status);
  // A gateway has no reason to cancel this; a server of another protocol shows like this.
  if (absl::IsUnimplemented(plain) || absl::IsCancelled(plain)) return NoGateway(plain, plain.code());
  if (!status.ok()) return Explain(status);
  std::vector<std::string> names;
  for (const v1::ModelInfo& model : response.models()) names.push_back(model.name());
  return names;
}

absl::StatusOr<std::string> Client::ResolveModel(const std::string& model, absl::Duration wait) {
  const absl::Time deadline = clock_.Now() + wait;
  while (true) {
    const absl::StatusOr<std::string> resolved = Choose(model, Models());
    // CANCELLED: a server of another protocol, or a gateway that is just ending.
    const bool may_come = absl::IsUnavailable(resolved.status()) || absl::IsNotFound(resolved.status()) ||
                          absl::IsCancelled(resolved.status());
    if (!may_come || clock_.Now() >= deadline) return resolved;
    Pause();
  }
}

// A channel makes progress with its connection only while a thread waits on it.
void Client::Pause() {
  if (channel_->GetState(/*try_to_connect=*/true) != GRPC_CHANNEL_READY) {
    channel_->WaitForConnected(absl::ToChronoTime(WallTimeNow() + kPoll));
  } else {
    absl::Notification().WaitForNotificationWithTimeout(kPoll);
  }
}

absl::StatusOr<Turn> Client::Generate(const v1::GenerateRequest& request, const OnResponse& on_response) {
  grpc::ClientContext context;
  const absl::Time start = clock_.Now();
  auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse response;
  Turn turn;
  absl::Duration last;
  while (reader->Read(&response)) {
    Count(response, clock_.Now() - start, last, turn);
    on_response(response);
  }
  turn.total = clock_.Now() - start;
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return Explain(status);
  return turn;
}

absl::StatusOr<v1::TokenizeResponse> Client::Tokenize(const v1::TokenizeRequest& request) {
  grpc::ClientContext context;
  v1::TokenizeResponse response;
  const grpc::Status status = stub_->Tokenize(&context, request, &response);
  if (!status.ok()) return Explain(status);
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> Client::Detokenize(const v1::DetokenizeRequest& request) {
  grpc::ClientContext context;
  v1::DetokenizeResponse response;
  const grpc::Status status = stub_->Detokenize(&context, request, &response);
  if (!status.ok()) return Explain(status);
  return response;
}

}  // namespace swiftcache::services::ctl
