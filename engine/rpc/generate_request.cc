// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/generate_request.h"

#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/rpc/proto_duration.h"

namespace swiftcache::engine::rpc {
namespace {

constexpr size_t kShownBytes = 128;  // of a name that is not ours
// Lists have up to twice the room that they need.
constexpr int64_t kIdBytes = 2 * sizeof(int32_t);
constexpr int64_t kLogprobBytes = 16 + sizeof(v1::TokenLogprob) + 2 * sizeof(void*);  // 16: of the allocator

absl::Status CheckLength(const char* field, const std::string& value, int64_t max_bytes) {
  if (static_cast<int64_t>(value.size()) <= max_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", value.size(), " bytes, the limit is ", max_bytes, "; send a shorter one"));
}

// Ids of another vocabulary mean something else, or nothing. Whoever sent them does not know yet that the engine which
// it means is gone.
absl::Status CheckModel(const v1::EngineGenerateRequest& request, const WireLimits& limits) {
  const auto differs = [](const std::string& wanted, const std::string& served) {
    return !wanted.empty() && !served.empty() && wanted != served;
  };
  if (!differs(request.model_name(), limits.model_name) &&
      !differs(request.model_card_hash(), limits.model_card_hash)) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat("this engine serves model ", limits.model_name, " (card ",
                                             limits.model_card_hash, "), wanted ",
                                             absl::CHexEscape(request.model_name().substr(0, kShownBytes)), " (card ",
                                             absl::CHexEscape(request.model_card_hash().substr(0, kShownBytes)),
                                             "): another engine has this address now; send the request to another"));
}

sample::SamplingParams ToParams(const v1::Sampling& sampling, const std::function<uint64_t()>& random) {
  sample::SamplingParams params;
  if (sampling.has_temperature()) params.temperature = sampling.temperature();
  if (sampling.has_top_p()) params.top_p = sampling.top_p();
  if (sampling.has_top_k()) params.top_k = sampling.top_k() == -1 ? 0 : sampling.top_k();
  if (sampling.has_min_p()) params.min_p = sampling.min_p();
  params.seed = sampling.has_seed() ? sampling.seed() : random();
  if (sampling.has_repetition_penalty()) params.repetition_penalty = sampling.repetition_penalty();
  if (sampling.has_presence_penalty()) params.presence_penalty = sampling.presence_penalty();
  if (sampling.has_frequency_penalty()) params.frequency_penalty = sampling.frequency_penalty();
  if (sampling.has_logprobs()) params.logprobs = sampling.logprobs();
  return params;
}

void AddLogprob(const exec::TokenLogprob& logprob, v1::EngineGenerateResponse& response) {
  v1::TokenLogprob& proto = *response.add_logprobs();
  proto.set_token_id(logprob.token_id);
  proto.set_logprob(logprob.logprob);
  for (const auto& [id, value] : logprob.top) {
    v1::TokenLogprob& top = *proto.add_top();
    top.set_token_id(id);
    top.set_logprob(value);
  }
}

void SetUsage(const exec::Usage& usage, v1::Usage& proto) {
  proto.set_prompt_tokens(usage.prompt_tokens);
  proto.set_completion_tokens(usage.completion_tokens);
  proto.mutable_cached_tokens()->set_local(usage.cached_local_tokens);
  proto.mutable_cached_tokens()->set_donor(usage.cached_donor_tokens);
  *proto.mutable_time_to_first_token() = DurationToProto(usage.time_to_first_token);
  *proto.mutable_queue_time() = DurationToProto(usage.queue_time);
}

// Of a log-probability and those of the most likely tokens beside it.
int64_t MemoryOfLogprob(int64_t top) { return (1 + top) * kLogprobBytes; }

v1::FinishReason ToProto(exec::FinishReason reason) {
  switch (reason) {
    case exec::FinishReason::kStop:
      return v1::STOP;
    case exec::FinishReason::kLength:
      return v1::LENGTH;
    case exec::FinishReason::kCancelled:
      return v1::CANCELLED;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

}  // namespace

absl::StatusOr<exec::Request> ToRequest(const v1::EngineGenerateRequest& proto, const WireLimits& limits,
                                        const std::function<uint64_t()>& random) {
  RETURN_IF_ERROR(CheckModel(proto, limits));
  RETURN_IF_ERROR(CheckLength("request_id", proto.request_id(), limits.max_request_id_bytes));
  RETURN_IF_ERROR(CheckLength("cache_salt", proto.cache_salt(), limits.max_cache_salt_bytes));
  if (const int ids = proto.sampling().stop_token_ids_size(); ids > limits.max_stop_token_ids) {
    return absl::InvalidArgumentError(
        absl::StrCat("stop_token_ids has ", ids, " ids, the limit is ", limits.max_stop_token_ids, "; send fewer"));
  }
  exec::Request request;
  request.sampling = ToParams(proto.sampling(), random);
  request.request_id = proto.request_id().empty() ? absl::StrFormat("engine-%016x", random()) : proto.request_id();
  request.prompt.assign(proto.token_ids().begin(), proto.token_ids().end());
  if (proto.sampling().has_max_tokens()) request.max_tokens = proto.sampling().max_tokens();
  request.stop_token_ids.assign(proto.sampling().stop_token_ids().begin(), proto.sampling().stop_token_ids().end());
  request.ignore_eos = proto.sampling().ignore_eos();
  request.n = proto.sampling().has_n() ? proto.sampling().n() : 1;
  request.cache_salt = proto.cache_salt();
  request.priority = proto.priority();
  return request;
}

void Append(const exec::TokenEvent& event, v1::EngineGenerateResponse& response) {
  response.mutable_token_ids()->Add(event.token_ids.begin(), event.token_ids.end());
  for (const exec::TokenLogprob& logprob : event.logprobs) AddLogprob(logprob, response);
  if (event.finish.has_value()) response.set_finish_reason(ToProto(*event.finish));
  if (event.usage.has_value()) SetUsage(*event.usage, *response.mutable_usage());
}

int64_t MemoryOf(const exec::TokenEvent& event) {
  int64_t bytes = kIdBytes * static_cast<int64_t>(event.token_ids.size());
  for (const exec::TokenLogprob& logprob : event.logprobs) {
    bytes += MemoryOfLogprob(static_cast<int64_t>(logprob.top.size()));
  }
  return bytes;
}

int64_t MemoryOf(const v1::EngineGenerateResponse& response) {
  int64_t bytes = kIdBytes * response.token_ids_size();
  for (const v1::TokenLogprob& logprob : response.logprobs()) bytes += MemoryOfLogprob(logprob.top_size());
  return bytes;
}

v1::EngineGenerateResponse ToProto(const exec::TokenEvent& event) {
  v1::EngineGenerateResponse response;
  response.set_index(event.index);
  Append(event, response);
  return response;
}

}  // namespace swiftcache::engine::rpc
