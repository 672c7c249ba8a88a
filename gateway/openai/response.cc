// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai/response.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/utf8.h"

namespace swiftcache::gateway::openai {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLogOfZero = -9999;  // JSON has no infinity

std::string Dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

double Finite(float logprob) { return std::max<double>(logprob, kLogOfZero); }

Json FinishJson(const std::optional<fleet::FinishReason>& finish) {
  if (!finish) return nullptr;
  return *finish == fleet::FinishReason::kLength ? "length" : "stop";
}

Json UsageJson(const UsageTotals& usage) {
  const int64_t cached = usage.cached_local + usage.cached_donor + usage.cached_host;
  return {{"prompt_tokens", usage.prompt},
          {"completion_tokens", usage.completion},
          {"total_tokens", usage.prompt + usage.completion},
          {"prompt_tokens_details",
           {{"cached_tokens", cached},
            {"cached_tokens_by_source",
             {{"local", usage.cached_local}, {"donor", usage.cached_donor}, {"host", usage.cached_host}}}}}};
}

Json ChatToken(const relay::TokenLogprob& token) {
  Json bytes = Json::array();
  for (const char c : token.token) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", token.token}, {"logprob", Finite(token.logprob)}, {"bytes", std::move(bytes)}};
}

Json ChatEntry(const relay::TokenLogprob& token) {
  Json entry = ChatToken(token);
  entry["top_logprobs"] = Json::array();
  for (const relay::TokenLogprob& other : token.top) entry["top_logprobs"].push_back(ChatToken(other));
  return entry;
}

// A token that is part of a character, as OpenAI's completions spell it: "bytes:\xe2\x82". As text, all of them would
// be the same U+FFFD, and the same key.
std::string Spelled(const std::string& token) {
  if (IsValidUtf8(token)) return token;
  std::string spelled = "bytes:";
  for (const char c : token)
    absl::StrAppend(&spelled, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
  return spelled;
}

// Has one more than was asked for, where the chosen token is none of the most likely. Of tokens with the same text the
// chosen one counts, or else the first, which is the likeliest.
Json CompletionTop(const relay::TokenLogprob& token) {
  Json top = Json::object();
  for (const relay::TokenLogprob& other : token.top) top.emplace(Spelled(other.token), Finite(other.logprob));
  top[Spelled(token.token)] = Finite(token.logprob);
  return top;
}

// Many clients take U+0085, U+2028 and U+2029 for the end of a line, as Python's splitlines does. In JSON they stand
// inside strings alone, where they may be escaped.
std::string Event(std::string json) {
  absl::StrReplaceAll({{"\xc2\x85", "\\u0085"}, {"\xe2\x80\xa8", "\\u2028"}, {"\xe2\x80\xa9", "\\u2029"}}, &json);
  return "data: " + json + "\n\n";
}

// Everything before the choices; inside their list.
std::string Head(const ResponseOptions& options, const std::string& id, int64_t created_s) {
  const char* chat = options.stream ? "chat.completion.chunk" : "chat.completion";
  std::string head = Dump({{"id", id},
                           {"object", options.endpoint == Endpoint::kChat ? chat : "text_completion"},
                           {"created", created_s},
                           {"model", options.model},
                           {"choices", Json::array()}});
  head.resize(head.size() - 2);  // "]}"
  return head;
}

std::string Tail(const std::optional<UsageTotals>& usage) {
  return usage ? R"(],"usage":)" + Dump(UsageJson(*usage)) + "}" : "]}";
}

// `begin`: the fields before the logprobs, whose JSON is there already.
void AddChoice(const Json& begin, Endpoint endpoint, LogprobsJson* logprobs,
               const std::optional<fleet::FinishReason>& finish, std::string& out) {
  out += Dump(begin);
  out.back() = ',';  // "}"
  out += R"("logprobs":)";
  logprobs == nullptr ? void(out += "null") : logprobs->MoveTo(endpoint, out);
  out += R"(,"finish_reason":)" + Dump(FinishJson(finish)) + "}";
}

// To the inside of a list.
void AddTo(std::string& list, const Json& value) {
  if (!list.empty()) list += ',';
  list += Dump(value);
}

void MoveList(std::string& list, std::string_view before, std::string& out) {
  out += before;
  out += '[';
  out += std::exchange(list, {});
  out += ']';
}

Json ModelJson(const relay::ModelInfo& model, int64_t created_s) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", created_s},
          {"owned_by", "swiftcache"},
          {"root", model.name},  // clients of vLLM index it
          {"max_model_len", model.max_model_len_tokens}};
}

}  // namespace

void LogprobsJson::Add(Endpoint endpoint, const relay::TokenLogprob& token) {
  if (endpoint == Endpoint::kChat) return AddTo(tokens_, ChatEntry(token));
  AddTo(tokens_, Spelled(token.token));
  AddTo(values_, Finite(token.logprob));
  AddTo(tops_, CompletionTop(token));
  AddTo(offsets_, text_offset_);
  text_offset_ += CountCharacters(token.token);
}

int64_t LogprobsJson::bytes() const {
  return static_cast<int64_t>(tokens_.size() + values_.size() + tops_.size() + offsets_.size());
}

void LogprobsJson::MoveTo(Endpoint endpoint, std::string& out) {
  if (endpoint == Endpoint::kChat) {
    MoveList(tokens_, R"({"content":)", out);
  } else {
    MoveList(tokens_, R"({"tokens":)", out);
    MoveList(values_, R"(,"token_logprobs":)", out);
    MoveList(tops_, R"(,"top_logprobs":)", out);
    MoveList(offsets_, R"(,"text_offset":)", out);
  }
  out += '}';
}

ResponseWriter::ResponseWriter(ResponseOptions options, const std::string& id, int64_t created_s)
    : options_(std::move(options)), head_(Head(options_, id, created_s)) {}

std::string ResponseWriter::RoleChunk(int32_t index, const std::optional<UsageTotals>& usage) const {
  std::string chunk = head_;
  const Json begin = {{"index", index}, {"delta", {{"role", "assistant"}, {"content", ""}}}};
  AddChoice(begin, options_.endpoint, nullptr, {}, chunk);
  return Event(std::move(chunk) + Tail(usage));
}

std::string ResponseWriter::Chunk(int32_t index, Choice& added, const std::optional<UsageTotals>& usage) const {
  Json begin = {{"index", index}};
  const std::string text = std::exchange(added.text, {});
  if (options_.endpoint == Endpoint::kChat) {
    begin["delta"] = text.empty() ? Json::object() : Json{{"content", text}};
  } else {
    begin["text"] = text;
  }
  std::string chunk = head_;
  AddChoice(begin, options_.endpoint, options_.logprobs ? &added.logprobs : nullptr, std::exchange(added.finish, {}),
            chunk);
  return Event(std::move(chunk) + Tail(usage));
}

std::string ResponseWriter::UsageChunk(const UsageTotals& usage) const { return Event(head_ + Tail(usage)); }

std::string ResponseWriter::Whole(std::vector<Choice> choices, const UsageTotals& usage) const {
  std::string whole = head_;
  for (size_t i = 0; i < choices.size(); ++i) {
    Choice& choice = choices[i];
    Json begin = {{"index", i}};
    if (options_.endpoint == Endpoint::kChat) {
      begin["message"] = {{"role", "assistant"}, {"content", choice.text}};
    } else {
      begin["text"] = choice.text;
    }
    if (i > 0) whole += ',';
    AddChoice(begin, options_.endpoint, options_.logprobs ? &choice.logprobs : nullptr, choice.finish, whole);
  }
  return whole += Tail(usage);
}

std::string ModelList(const std::vector<relay::ModelInfo>& models, int64_t created_s) {
  Json data = Json::array();
  for (const relay::ModelInfo& model : models) data.push_back(ModelJson(model, created_s));
  return Dump({{"object", "list"}, {"data", std::move(data)}});
}

std::string ModelEntry(const relay::ModelInfo& model, int64_t created_s) { return Dump(ModelJson(model, created_s)); }

}  // namespace swiftcache::gateway::openai
