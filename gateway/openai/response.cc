// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai/response.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace swiftcache::gateway::openai {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLogOfZero = -9999;  // JSON has no infinity

std::string Dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string Event(const Json& value) { return "data: " + Dump(value) + "\n\n"; }

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

Json ChatLogprobs(const std::vector<relay::TokenLogprob>& tokens) {
  Json content = Json::array();
  for (const relay::TokenLogprob& token : tokens) content.push_back(ChatEntry(token));
  return {{"content", std::move(content)}};
}

// Has one more than was asked for, where the chosen token is none of the most likely.
Json CompletionTop(const relay::TokenLogprob& token) {
  Json top = Json::object();
  for (const relay::TokenLogprob& other : token.top) top[other.token] = Finite(other.logprob);
  top[token.token] = Finite(token.logprob);
  return top;
}

Json CompletionLogprobs(const std::vector<relay::TokenLogprob>& tokens, int64_t text_offset) {
  Json names = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
  for (const relay::TokenLogprob& token : tokens) {
    names.push_back(token.token);
    values.push_back(Finite(token.logprob));
    tops.push_back(CompletionTop(token));
    offsets.push_back(text_offset);
    text_offset += CountCharacters(token.token);
  }
  return {{"tokens", std::move(names)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json Logprobs(const ResponseOptions& options, const Choice& choice, int64_t text_offset) {
  if (!options.logprobs) return nullptr;
  return options.endpoint == Endpoint::kChat ? ChatLogprobs(choice.logprobs)
                                             : CompletionLogprobs(choice.logprobs, text_offset);
}

// Everything around the choices.
Json Envelope(const ResponseOptions& options, const std::string& id, int64_t created_s, Json choices) {
  const char* chat = options.stream ? "chat.completion.chunk" : "chat.completion";
  return {{"id", id},
          {"object", options.endpoint == Endpoint::kChat ? chat : "text_completion"},
          {"created", created_s},
          {"model", options.model},
          {"choices", std::move(choices)}};
}

Json ChunkChoice(int32_t index, Json delta, Json logprobs, Json finish) {
  return {{"index", index},
          {"delta", std::move(delta)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", std::move(finish)}};
}

Json TextChoice(int32_t index, const std::string& text, Json logprobs, Json finish) {
  return {{"index", index}, {"text", text}, {"logprobs", std::move(logprobs)}, {"finish_reason", std::move(finish)}};
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
          {"max_model_len", model.max_model_len_tokens}};
}

}  // namespace

void LogprobsJson::Add(Endpoint endpoint, const relay::TokenLogprob& token) {
  if (endpoint == Endpoint::kChat) return AddTo(tokens_, ChatEntry(token));
  AddTo(tokens_, token.token);
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

std::string ResponseWriter::RoleChunk(int32_t index) const {
  const Json delta = {{"role", "assistant"}, {"content", ""}};
  return Event(Envelope(options_, id_, created_s_, Json::array({ChunkChoice(index, delta, nullptr, nullptr)})));
}

std::string ResponseWriter::Chunk(int32_t index, const Choice& added, int64_t text_offset,
                                  const UsageTotals* usage) const {
  Json logprobs = Logprobs(options_, added, text_offset);
  Json finish = FinishJson(added.finish);
  Json choice;
  if (options_.endpoint == Endpoint::kChat) {
    Json delta = Json::object();
    if (!added.text.empty()) delta["content"] = added.text;
    choice = ChunkChoice(index, std::move(delta), std::move(logprobs), std::move(finish));
  } else {
    choice = TextChoice(index, added.text, std::move(logprobs), std::move(finish));
  }
  Json chunk = Envelope(options_, id_, created_s_, Json::array({std::move(choice)}));
  if (usage != nullptr) chunk["usage"] = UsageJson(*usage);
  return Event(chunk);
}

std::string ResponseWriter::UsageChunk(const UsageTotals& usage) const {
  Json chunk = Envelope(options_, id_, created_s_, Json::array());
  chunk["usage"] = UsageJson(usage);
  return Event(chunk);
}

// The JSON of logprobs is there already: what stands around it is written around it.
std::string ResponseWriter::Whole(std::vector<WholeChoice> choices, const UsageTotals& usage) const {
  std::string whole = Dump(Envelope(options_, id_, created_s_, Json::array()));
  whole.resize(whole.size() - 2);  // "]}"
  for (size_t i = 0; i < choices.size(); ++i) {
    Json choice = Json::object();
    choice["index"] = i;
    if (options_.endpoint == Endpoint::kChat) {
      choice["message"] = {{"role", "assistant"}, {"content", choices[i].text}};
    } else {
      choice["text"] = choices[i].text;
    }
    if (i > 0) whole += ',';
    whole += Dump(choice);
    whole.back() = ',';  // "}"
    whole += R"("logprobs":)";
    options_.logprobs ? choices[i].logprobs.MoveTo(options_.endpoint, whole) : void(whole += "null");
    whole += R"(,"finish_reason":)" + Dump(FinishJson(choices[i].finish)) + "}";
  }
  return whole += R"(],"usage":)" + Dump(UsageJson(usage)) + "}";
}

std::string ModelList(const std::vector<relay::ModelInfo>& models, int64_t created_s) {
  Json data = Json::array();
  for (const relay::ModelInfo& model : models) data.push_back(ModelJson(model, created_s));
  return Dump({{"object", "list"}, {"data", std::move(data)}});
}

std::string ModelEntry(const relay::ModelInfo& model, int64_t created_s) { return Dump(ModelJson(model, created_s)); }

int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace swiftcache::gateway::openai
