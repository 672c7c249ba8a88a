// SPDX-License-Identifier: Apache-2.0
#include "gateway/rpc/generate_door.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/base/traceparent.h"
#include "common/base/wall_time.h"
#include "common/rpc/address.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "gateway/rpc/caught.h"
#include "gateway/rpc/convert.h"
#include "gateway/rpc/held_answer.h"

namespace swiftcache::gateway::rpc {
namespace {

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return FromWallTime(absl::FromChrono(deadline));
}

// What the call says beside its message.
void Complete(relay::GenerateRequest& request, const grpc::CallbackServerContext& context) {
  request.traceparent = ParseTraceparent(ClientMetadata(context, "traceparent"));
  request.door = "grpc";
  request.client = ClientAddress(context.peer());
}

// Counted before it is copied: a message within its limit holds tens of millions of ids, or of empty strings.
absl::StatusOr<relay::GenerateRequest> ToPlain(relay::Relay& relay, const v1::GenerateRequest& request) {
  RETURN_IF_ERROR(relay.CheckSizes(request.model(), rpc::SizesOf(request)));
  return rpc::ToPlain(request);
}

grpc::ServerUnaryReactor* Done(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

absl::StatusOr<std::variant<std::string, relay::Chat>> InputOf(const v1::TokenizeRequest& request) {
  switch (request.input_case()) {
    case v1::TokenizeRequest::kText:
      return request.text();
    case v1::TokenizeRequest::kChat:
      return rpc::ToPlain(request.chat());
    case v1::TokenizeRequest::INPUT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("input is missing, wants one of text, chat: set one");
}

absl::StatusOr<std::vector<int32_t>> Tokens(relay::Relay& relay, const v1::TokenizeRequest& request) {
  RETURN_IF_ERROR(relay.CheckSizes(request.model(), rpc::SizesOf(request)));
  ASSIGN_OR_RETURN(auto input, InputOf(request));
  return relay.Tokenize(request.model(), input, request.parse_special());
}

}  // namespace

GenerateDoor::GenerateDoor(relay::Relay& relay, const Options& options, const Clock& clock)
    : relay_(relay),
      options_(options),
      clock_(clock),
      answers_budget_(options.max_held_answer_bytes),
      side_threads_(options.side_threads) {
  Count("Generate", &GenerateDoor::Generate);
  Count("ListModels", &GenerateDoor::ListModels);
  Count("Tokenize", &GenerateDoor::Tokenize);
  Count("Detokenize", &GenerateDoor::Detokenize);
}

// A long request on a side thread, a short one here and now. `copies`: how often it is in memory until then.
// RESOURCE_EXHAUSTED: `work` is not done.
absl::Status GenerateDoor::RunInTime(const google::protobuf::Message& request, int copies, std::function<void()> work) {
  if (SideThreads::IsLong(request.ByteSizeLong())) {
    return side_threads_.Run(copies * request.SpaceUsedLong(), std::move(work));
  }
  work();
  return absl::OkStatus();
}

void GenerateDoor::Refuse(const grpc::CallbackServerContext& context, const v1::GenerateRequest& request,
                          const absl::Status& why) {
  relay::GenerateRequest refused;
  refused.request_id = request.request_id();
  refused.model = request.model();
  Complete(refused, context);
  relay_.Refused(std::move(refused), why);
}

grpc::ServerWriteReactor<v1::GenerateResponse>* GenerateDoor::Generate(grpc::CallbackServerContext* context,
                                                                       const v1::GenerateRequest* request) {
  const std::shared_ptr<GenerateStream> stream = GenerateStream::Create(options_.stream);
  stream->CutIfStalled(*context, options_.stream.stall_timeout, stream);
  absl::StatusOr<relay::GenerateRequest> plain = ToPlain(relay_, *request);
  absl::Status status = plain.status();
  if (plain.ok()) {
    Complete(*plain, *context);
    plain->deadline = DeadlineOf(*context);
    plain->arrived = clock_.Now();
    auto begin = [this, stream, plain = *std::move(plain)]() mutable { stream->Begin(relay_, std::move(plain)); };
    status = RunInTime(*request, /*copies=*/2, std::move(begin));
  }
  if (!status.ok()) {
    Refuse(*context, *request, status);
    stream->Begin(relay_, status);
  }
  return stream.get();
}

grpc::ServerUnaryReactor* GenerateDoor::ListModels(grpc::CallbackServerContext* context,
                                                   const v1::ListModelsRequest* request,
                                                   v1::ListModelsResponse* response) {
  const absl::StatusOr<std::vector<relay::ModelInfo>> models = relay_.ListModels();
  if (!models.ok()) return Done(context, models.status());
  for (const relay::ModelInfo& info : *models) {
    v1::ModelInfo& model = *response->add_models();
    model.set_name(info.name);
    model.set_max_model_len_tokens(info.max_model_len_tokens);
    model.set_engines(info.engines);
  }
  return Done(context, absl::OkStatus());
}

absl::Status GenerateDoor::Answer(const v1::TokenizeRequest& request, v1::TokenizeResponse& response) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids, Tokens(relay_, request));
  response.mutable_token_ids()->Assign(ids.begin(), ids.end());
  return absl::OkStatus();
}

absl::Status GenerateDoor::Answer(const v1::DetokenizeRequest& request, v1::DetokenizeResponse& response) {
  const auto& ids = request.token_ids();
  ASSIGN_OR_RETURN(*response.mutable_text(),
                   relay_.Detokenize(request.model(), {ids.data(), static_cast<size_t>(ids.size())}));
  return absl::OkStatus();
}

// Context, request, response and answer live until the answer's End. What nobody waits for any more is not computed.
template <typename Request, typename Response>
grpc::ServerUnaryReactor* GenerateDoor::AnswerInTime(grpc::CallbackServerContext& context, const Request& request,
                                                     Response& response) {
  auto* held = new HeldAnswer(context, answers_budget_, options_.answer_timeout);
  const auto answer = [this, &context, &request, &response, held] {
    absl::Status status =
        context.IsCancelled() ? relay::ClientGone() : Caught([&] { return Answer(request, response); });
    // The message, and its bytes on the wire.
    if (status.ok()) status = held->Hold(response.SpaceUsedLong() + response.ByteSizeLong());
    if (!status.ok()) Response().Swap(&response);
    held->End(status);
  };
  absl::Status status = held->Hold(request.SpaceUsedLong());
  if (status.ok()) status = RunInTime(request, /*copies=*/1, answer);
  if (!status.ok()) held->End(status);
  return held;
}

grpc::ServerUnaryReactor* GenerateDoor::Tokenize(grpc::CallbackServerContext* context,
                                                 const v1::TokenizeRequest* request, v1::TokenizeResponse* response) {
  return AnswerInTime(*context, *request, *response);
}

grpc::ServerUnaryReactor* GenerateDoor::Detokenize(grpc::CallbackServerContext* context,
                                                   const v1::DetokenizeRequest* request,
                                                   v1::DetokenizeResponse* response) {
  return AnswerInTime(*context, *request, *response);
}

}  // namespace swiftcache::gateway::rpc
