// SPDX-License-Identifier: Apache-2.0
#include "gateway/rpc/convert.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "common/rpc/proto_duration.h"

namespace swiftcache::gateway::rpc {
namespace {

fleet::Sampling ToPlain(const v1::Sampling& in) {
  fleet::Sampling out;
  if (in.has_max_tokens()) out.max_tokens = in.max_tokens();
  if (in.has_temperature()) out.temperature = in.temperature();
  if (in.has_top_p()) out.top_p = in.top_p();
  if (in.has_top_k()) out.top_k = in.top_k();
  if (in.has_min_p()) out.min_p = in.min_p();
  if (in.has_seed()) out.seed = in.seed();
  out.stop = text::StopStrings(std::vector<std::string>(in.stop().begin(), in.stop().end()));
  out.stop_token_ids.assign(in.stop_token_ids().begin(), in.stop_token_ids().end());
  out.ignore_eos = in.ignore_eos();
  if (in.has_repetition_penalty()) out.repetition_penalty = in.repetition_penalty();
  if (in.has_presence_penalty()) out.presence_penalty = in.presence_penalty();
  if (in.has_frequency_penalty()) out.frequency_penalty = in.frequency_penalty();
  if (in.has_logprobs()) out.logprobs = in.logprobs();
  if (in.has_n()) out.n = in.n();
  return out;
}

// Without `stop`: an engine knows no text.
v1::Sampling ToProto(const fleet::Sampling& in) {
  v1::Sampling out;
  if (in.max_tokens) out.set_max_tokens(*in.max_tokens);
  if (in.temperature) out.set_temperature(*in.temperature);
  if (in.top_p) out.set_top_p(*in.top_p);
  if (in.top_k) out.set_top_k(*in.top_k);
  if (in.min_p) out.set_min_p(*in.min_p);
  if (in.seed) out.set_seed(*in.seed);
  out.mutable_stop_token_ids()->Assign(in.stop_token_ids.begin(), in.stop_token_ids.end());
  out.set_ignore_eos(in.ignore_eos);
  if (in.repetition_penalty) out.set_repetition_penalty(*in.repetition_penalty);
  if (in.presence_penalty) out.set_presence_penalty(*in.presence_penalty);
  if (in.frequency_penalty) out.set_frequency_penalty(*in.frequency_penalty);
  if (in.logprobs) out.set_logprobs(*in.logprobs);
  if (in.n) out.set_n(*in.n);
  return out;
}

v1::Usage ToProto(const fleet::Usage& in) {
  v1::Usage out;
  out.set_prompt_tokens(in.prompt_tokens);
  out.set_completion_tokens(in.completion_tokens);
  out.mutable_cached_tokens()->set_local(in.cached_local_tokens);
  out.mutable_cached_tokens()->set_donor(in.cached_donor_tokens);
  out.mutable_cached_tokens()->set_host(in.cached_host_tokens);
  *out.mutable_time_to_first_token() = DurationToProto(in.time_to_first_token);
  *out.mutable_queue_time() = DurationToProto(in.queue_time);
  return out;
}

fleet::Usage ToPlain(const v1::Usage& in) {
  return {.prompt_tokens = in.prompt_tokens(),
          .completion_tokens = in.completion_tokens(),
          .cached_local_tokens = in.cached_tokens().local(),
          .cached_donor_tokens = in.cached_tokens().donor(),
          .cached_host_tokens = in.cached_tokens().host(),
          .time_to_first_token = DurationFromProto(in.time_to_first_token()),
          .queue_time = DurationFromProto(in.queue_time())};
}

v1::FinishReason ToProto(fleet::FinishReason reason) {
  switch (reason) {
    case fleet::FinishReason::kStop:
      return v1::STOP;
    case fleet::FinishReason::kLength:
      return v1::LENGTH;
    case fleet::FinishReason::kCancelled:
      return v1::CANCELLED;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

// An engine newer than this gateway may have other reasons; the continuation has ended all the same.
fleet::FinishReason ToPlain(v1::FinishReason reason) {
  if (reason == v1::LENGTH) return fleet::FinishReason::kLength;
  if (reason == v1::CANCELLED) return fleet::FinishReason::kCancelled;
  return fleet::FinishReason::kStop;
}

void Fill(const relay::TokenLogprob& in, v1::TokenLogprob& out) {
  out.set_token_id(in.token_id);
  out.set_logprob(in.logprob);
  out.set_token(in.token);
  for (const relay::TokenLogprob& top : in.top) Fill(top, *out.add_top());
}

fleet::TokenLogprob ToPlain(const v1::TokenLogprob& in) {
  fleet::TokenLogprob out{.token_id = in.token_id(), .logprob = in.logprob(), .top = {}};
  for (const v1::TokenLogprob& top : in.top()) out.top.emplace_back(top.token_id(), top.logprob());
  return out;
}

fleet::EngineState ToPlain(v1::EngineState state) {
  switch (state) {
    case v1::STARTING:
      return fleet::EngineState::kStarting;
    case v1::READY:
      return fleet::EngineState::kReady;
    case v1::DRAINING:
      return fleet::EngineState::kDraining;
    case v1::STALLED:
      return fleet::EngineState::kStalled;
    default:
      return fleet::EngineState::kUnspecified;
  }
}

text::TemplateVariable ToPlain(const v1::TemplateVariable& in) {
  switch (in.value_case()) {
    case v1::TemplateVariable::kFlag:
      return in.flag();
    case v1::TemplateVariable::kWhole:
      return in.whole();
    case v1::TemplateVariable::kNumber:
      return in.number();
    case v1::TemplateVariable::kText:
      return in.text();
    case v1::TemplateVariable::VALUE_NOT_SET:
      return {};
  }
  return {};
}

}  // namespace

relay::Chat ToPlain(const v1::Chat& in) {
  relay::Chat out;
  for (const v1::ChatMessage& message : in.messages()) out.messages.push_back({message.role(), message.content()});
  out.add_generation_prompt = !in.has_add_generation_prompt() || in.add_generation_prompt();
  out.plain_content = in.plain_content();
  for (const auto& [name, variable] : in.chat_template_kwargs()) out.template_variables[name] = ToPlain(variable);
  return out;
}

relay::RequestSizes SizesOf(const v1::GenerateRequest& in) {
  return {.prompt_bytes = static_cast<int64_t>(in.prompt().size()),
          .token_ids = in.token_ids().ids_size(),
          .messages = in.chat().messages_size(),
          .template_variables = static_cast<int64_t>(in.chat().chat_template_kwargs_size()),
          .stop_strings = in.sampling().stop_size(),
          .stop_token_ids = in.sampling().stop_token_ids_size()};
}

relay::RequestSizes SizesOf(const v1::TokenizeRequest& in) {
  return {.prompt_bytes = static_cast<int64_t>(in.text().size()),
          .messages = in.chat().messages_size(),
          .template_variables = static_cast<int64_t>(in.chat().chat_template_kwargs_size())};
}

absl::StatusOr<relay::GenerateRequest> ToPlain(const v1::GenerateRequest& in) {
  relay::GenerateRequest out;
  out.request_id = in.request_id();
  out.model = in.model();
  switch (in.input_case()) {
    case v1::GenerateRequest::kPrompt:
      out.input = in.prompt();
      break;
    case v1::GenerateRequest::kTokenIds:
      out.input = std::vector<int32_t>(in.token_ids().ids().begin(), in.token_ids().ids().end());
      break;
    case v1::GenerateRequest::kChat:
      out.input = ToPlain(in.chat());
      break;
    case v1::GenerateRequest::INPUT_NOT_SET:
      return absl::InvalidArgumentError("input is missing, wants one of prompt, token_ids, chat: set one");
  }
  out.sampling = ToPlain(in.sampling());
  out.cache_salt = in.cache_salt();
  out.plain_prompt = in.plain_prompt();
  out.priority = in.priority();
  return out;
}

v1::GenerateResponse ToProto(const relay::GenerateEvent& in) {
  v1::GenerateResponse out;
  out.set_index(in.index);
  out.set_text(in.text);
  out.mutable_token_ids()->Assign(in.token_ids.begin(), in.token_ids.end());
  for (const relay::TokenLogprob& logprob : in.logprobs) Fill(logprob, *out.add_logprobs());
  if (in.finish.has_value()) out.set_finish_reason(ToProto(*in.finish));
  if (in.usage.has_value()) *out.mutable_usage() = ToProto(*in.usage);
  return out;
}

v1::EngineGenerateRequest ToProto(const fleet::EngineRequest& in) {
  v1::EngineGenerateRequest out;
  out.set_request_id(in.request_id);
  out.mutable_token_ids()->Assign(in.token_ids.begin(), in.token_ids.end());
  *out.mutable_sampling() = ToProto(in.sampling);
  out.set_cache_salt(in.cache_salt);
  out.set_priority(in.priority);
  return out;
}

fleet::EngineEvent ToPlain(const v1::EngineGenerateResponse& in) {
  fleet::EngineEvent out;
  out.index = in.index();
  out.token_ids.assign(in.token_ids().begin(), in.token_ids().end());
  for (const v1::TokenLogprob& logprob : in.logprobs()) out.logprobs.push_back(ToPlain(logprob));
  if (in.has_finish_reason()) out.finish = ToPlain(in.finish_reason());
  if (in.has_usage()) out.usage = ToPlain(in.usage());
  return out;
}

fleet::EngineStatus ToPlain(const v1::EngineStatus& in) {
  fleet::EngineStatus out;
  out.info = {.name = in.info().name(),
              .instance_id = in.info().instance_id(),
              .model_name = in.info().model_name(),
              .address = in.info().address(),
              .max_model_len_tokens = in.info().max_model_len_tokens(),
              .model_card_hash = in.info().model_card_hash(),
              .state = ToPlain(in.info().state())};
  out.load = {.running_requests = in.load().running_requests(), .waiting_requests = in.load().waiting_requests()};
  return out;
}

}  // namespace swiftcache::gateway::rpc
