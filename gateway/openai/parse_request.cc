// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai/parse_request.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/traceparent.h"
#include "gateway/openai/json_parse.h"

namespace swiftcache::gateway::openai {
namespace {

using nlohmann::json;

constexpr int32_t kDefaultCompletionTokens = 16;  // as in OpenAI's API
constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr int64_t kAnyLength = std::numeric_limits<int64_t>::max();

std::optional<int32_t> Narrow(std::optional<int64_t> value) {
  return value ? std::optional<int32_t>(static_cast<int32_t>(*value)) : std::nullopt;
}

void ReadSampling(Fields& fields, const HttpRequestLimits& limits, fleet::Sampling& sampling) {
  sampling.temperature = fields.Number<float>("temperature", {.low = 0, .high = 2});
  sampling.top_p = fields.Number<float>("top_p", {.low = 0, .high = 1, .low_is_open = true});
  sampling.top_k = Narrow(fields.Integer("top_k", -1, kMaxInt));
  sampling.min_p = fields.Number<float>("min_p", {.low = 0, .high = 1});
  sampling.seed = fields.Seed("seed");
  sampling.presence_penalty = fields.Number<float>("presence_penalty", {.low = -2, .high = 2});
  sampling.frequency_penalty = fields.Number<float>("frequency_penalty", {.low = -2, .high = 2});
  sampling.repetition_penalty = fields.Number<float>("repetition_penalty", {.low = 0, .high = 10, .low_is_open = true});
  sampling.stop =
      text::StopStrings(fields.Texts("stop", limits.request.max_stop_strings, limits.request.max_stop_bytes));
  sampling.stop_token_ids = fields.Ids("stop_token_ids", limits.request.max_stop_token_ids);
  sampling.ignore_eos = fields.Bool("ignore_eos").value_or(false);
  const int64_t min_tokens = fields.Integer("min_tokens", 0, kMaxInt).value_or(0);
  if (min_tokens > 0 && !sampling.ignore_eos) {
    fields.Fail("min_tokens", absl::StrCat("is ", min_tokens,
                                           ", wants 0, or ignore_eos as well: the end that a model "
                                           "gives its answer is heeded or not, and cannot be put off"));
  }
  sampling.n = Narrow(fields.Integer("n", 1, relay::kMaxContinuations));
  const std::optional<int64_t> best_of = fields.Integer("best_of", 1, relay::kMaxContinuations);
  if (best_of && *best_of != sampling.n.value_or(1)) {
    fields.Fail("best_of", absl::StrCat("is ", *best_of, ", wants the value of n (", sampling.n.value_or(1),
                                        "): choosing among more is not supported"));
  }
}

void ReadCompletionOptions(Fields& fields, fleet::Sampling& sampling, ResponseOptions& answer) {
  sampling.max_tokens = Narrow(fields.Integer("max_tokens", 1, kMaxInt)).value_or(kDefaultCompletionTokens);
  sampling.logprobs = Narrow(fields.Integer("logprobs", 0, relay::kMaxLogprobs));
  answer.logprobs = sampling.logprobs.has_value();
  answer.echo = fields.Bool("echo").value_or(false);
  if (answer.echo && answer.logprobs) {
    fields.Fail("echo", "is true together with logprobs, which a prompt does not have here: send one of the two");
  }
}

void ReadChatOptions(Fields& fields, fleet::Sampling& sampling, ResponseOptions& answer) {
  const std::optional<int32_t> max_tokens = Narrow(fields.Integer("max_tokens", 1, kMaxInt));
  sampling.max_tokens = Narrow(fields.Integer("max_completion_tokens", 1, kMaxInt));  // the newer name wins
  if (!sampling.max_tokens) sampling.max_tokens = max_tokens;
  if (fields.Bool("echo").value_or(false)) fields.Fail("echo", "is true, wants false: a chat is not sent back");
  if (fields.Bool("add_special_tokens").value_or(false)) {
    fields.Fail("add_special_tokens", "is true, wants false: what a chat template renders has its own");
  }
  answer.logprobs = fields.Bool("logprobs").value_or(false);
  const std::optional<int32_t> top = Narrow(fields.Integer("top_logprobs", 0, relay::kMaxLogprobs));
  if (top && *top > 0 && !answer.logprobs) fields.Fail("top_logprobs", "is set, wants logprobs to be true as well");
  if (answer.logprobs) sampling.logprobs = top.value_or(0);
}

void ReadStreamOptions(Fields& fields, ResponseOptions& answer) {
  answer.stream = fields.Bool("stream").value_or(false);
  const json* options = fields.Find("stream_options");
  if (options == nullptr) return;
  Fields stream(*options, "stream_options.");
  answer.usage_at_end = stream.Bool("include_usage").value_or(false);
  answer.usage_on_chunks = stream.Bool("continuous_usage_stats").value_or(false);
  fields.Adopt(stream.status());
}

// A field that would change the response or its form, so that to ignore it would mislead the client: OpenAI's, the older
// names of these, vLLM's, SGLang's and llama.cpp's.
struct Refused {
  const char* name;
  std::vector<json> neutral;  // what asks for nothing
  const char* why;
};

const std::vector<Refused>& RefusedFields() {
  static constexpr const char *kTools = "calling tools is not supported",
                              *kForm = "a form cannot be imposed on answers",
                              *kChoice = "which tokens may be chosen cannot be told",
                              *kBeams = "beam search is not supported", *kText = "answers are text",
                              *kSampling = "this way to choose tokens is not supported";
  static const auto& fields = *new std::vector<Refused>{
      {"tools", {json::array()}, kTools},
      {"functions", {json::array()}, kTools},
      {"tool_choice", {"none", "auto"}, kTools},
      {"function_call", {"none", "auto"}, kTools},
      {"guided_json", {}, kForm},
      {"guided_regex", {}, kForm},
      {"guided_choice", {}, kForm},
      {"guided_grammar", {}, kForm},
      {"structured_outputs", {}, kForm},
      {"grammar", {}, kForm},
      {"json_schema", {}, kForm},
      {"regex", {}, kForm},
      {"ebnf", {}, kForm},
      {"logit_bias", {json::object()}, kChoice},
      {"bad_words", {json::array()}, kChoice},
      {"allowed_token_ids", {json::array()}, kChoice},
      {"use_beam_search", {false}, kBeams},
      {"length_penalty", {1}, kBeams},
      {"typical_p", {1}, kSampling},
      {"mirostat", {0}, kSampling},
      {"dynatemp_range", {0}, kSampling},
      {"dry_multiplier", {0}, kSampling},
      {"xtc_probability", {0}, kSampling},
      {"top_n_sigma", {-1, 0}, kSampling},
      {"samplers", {}, "the order in which tokens are sorted out cannot be told"},
      {"modalities", {json::array({"text"})}, kText},
      {"audio", {}, kText},
      {"web_search_options", {}, "nothing is searched for"},
      {"chat_template", {}, "a chat is rendered by the model's own template"},
      {"documents", {json::array()}, "a chat is rendered from its messages alone"},
      {"stop_regex", {json::array()}, "a pattern cannot end answers, texts in stop can"},
      {"include_stop_str_in_output", {false}, "answers end before what stops them"},
      {"skip_special_tokens", {true}, "special tokens have no text in answers"},
      {"suffix", {""}, "what follows an answer cannot be told"},
      {"truncate_prompt_tokens", {}, "prompts are not cut: send what is to be read"},
      {"prompt_logprobs", {}, "a prompt has no logprobs here"},
      {"continue_final_message", {false}, "the last message of a chat cannot be continued"},
  };
  return fields;
}

void RefuseUnsupported(Fields& fields) {
  for (const auto& [name, neutral, why] : RefusedFields()) {
    const json* value = fields.Find(name);
    if (value == nullptr || std::find(neutral.begin(), neutral.end(), *value) != neutral.end()) continue;
    std::string wanted = "to be left out";
    if (!neutral.empty() && !neutral[0].empty()) {
      wanted = absl::StrJoin(neutral, " or ", [](std::string* out, const json& v) { *out += v.dump(); });
    }
    fields.Fail(name, absl::StrCat("is ", Shown(*value), ", wants ", wanted, ": ", why));
  }
  const json* format = fields.Find("response_format");
  if (format == nullptr) return;
  Fields inside(*format, "response_format.");
  const json* type = inside.Find("type");
  if (type != nullptr && *type != "text") {
    inside.Fail("type", absl::StrCat("is ", Shown(*type), ", wants \"text\": other formats are not supported"));
  }
  fields.Adopt(inside.status());
}

using Inputs = std::vector<relay::Input>;

// Limits what is echoed, which each answer holds, so that a body within its limit could ask for gigabytes. How long the
// text of ids is, the handler sees.
void CheckEcho(Fields& fields, const HttpRequestLimits& limits, const Inputs& inputs, int64_t n) {
  int64_t ids = 0, bytes = 0;
  for (const auto& input : inputs) {
    if (const auto* prompt = std::get_if<std::vector<int32_t>>(&input)) ids += static_cast<int64_t>(prompt->size()) * n;
    if (const auto* prompt = std::get_if<std::string>(&input)) bytes += static_cast<int64_t>(prompt->size()) * n;
  }
  const auto check = [&](int64_t count, int64_t limit, const char* unit) {
    if (count <= limit) return;
    fields.Fail("echo", absl::StrCat("is true with ", count, " ", unit, " in all answers, wants at most ", limit,
                                     ": send fewer, or leave it out"));
  };
  check(ids, limits.max_echo_ids, "token ids");
  check(bytes, limits.max_echo_bytes, "bytes");
}

// An id that is too long stays too long, and the relay refuses it.
std::string Numbered(const std::string& id, size_t number, const HttpRequestLimits& limits) {
  const std::string suffix = absl::StrCat("-", number);
  const auto limit = static_cast<size_t>(limits.request.max_request_id_bytes);
  if (id.size() > limit) return id + suffix;
  return id.substr(0, std::min(id.size(), limit - suffix.size())) + suffix;
}

void ReadLabels(Fields& fields, const HttpRequestLimits& limits, relay::GenerateRequest& request) {
  request.model = fields.Text("model", limits.request.max_label_bytes).value_or("");
  if (request.model.empty()) fields.Fail("model", "is missing, wants the name of a model: GET /v1/models lists them");
  request.cache_salt = fields.Text("cache_salt", limits.request.max_label_bytes).value_or("");
  fields.Text("user", kAnyLength);  // used for nothing
  // Here less is more urgent, as in vLLM; to the relay more is.
  request.priority = -Narrow(fields.Integer("priority", -kMaxInt, kMaxInt)).value_or(0);
}

}  // namespace

absl::StatusOr<ParsedRequest> ParseRequest(Endpoint endpoint, const std::string& body,
                                           const HttpRequestLimits& limits) {
  ASSIGN_OR_RETURN(const json object, ParseJson(body));
  Fields fields(object);
  ParsedRequest parsed;
  ResponseOptions& answer = parsed.answer;
  answer.endpoint = endpoint;
  relay::GenerateRequest shared;
  ReadLabels(fields, limits, shared);
  ReadSampling(fields, limits, shared.sampling);
  ReadStreamOptions(fields, answer);
  RefuseUnsupported(fields);
  Inputs inputs;
  if (endpoint == Endpoint::kChat) {
    ReadChatOptions(fields, shared.sampling, answer);
    inputs.emplace_back(ParseChat(fields, limits));
  } else {
    ReadCompletionOptions(fields, shared.sampling, answer);
    shared.plain_prompt = fields.Bool("plain_content").value_or(false);
    shared.add_special = fields.Bool("add_special_tokens").value_or(true);
    inputs = ParsePrompts(fields, limits);
    answer.max_echo_bytes = limits.max_echo_bytes;
    if (answer.echo) CheckEcho(fields, limits, inputs, shared.sampling.n.value_or(1));
  }
  answer.model = shared.model;
  answer.n = shared.sampling.n.value_or(1);
  if (const int64_t answers = answer.n * static_cast<int64_t>(inputs.size()); answers > limits.max_answers) {
    fields.Fail("n", absl::StrCat("times the prompts is ", answers, ", wants at most ", limits.max_answers));
  }
  RETURN_IF_ERROR(fields.status());
  for (auto& input : inputs) {
    parsed.prompts.push_back(shared);
    parsed.prompts.back().input = std::move(input);
  }
  return parsed;
}

void ReadHeaders(const HttpRequest& http, const std::string& request_id, ParsedRequest& parsed,
                 const HttpRequestLimits& limits) {
  const std::string traceparent = ParseTraceparent(http.Header("traceparent"));
  for (size_t i = 0; i < parsed.prompts.size(); ++i) {
    relay::GenerateRequest& request = parsed.prompts[i];
    request.request_id = parsed.prompts.size() > 1 ? Numbered(request_id, i, limits) : request_id;
    request.traceparent = traceparent;
  }
}

}  // namespace swiftcache::gateway::openai
