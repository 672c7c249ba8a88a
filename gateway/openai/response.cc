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

Json ChatLogprobs(const std::vector<relay::TokenLogprob>& tokens) {
  Json content = Json::array();
  for (const relay::TokenLogprob& token : tokens) {
    Json entry = ChatToken(token);
    entry["top_logprobs"] = Json::array();
    for (const relay::TokenLogprob& other : token.top) entry["top_logprobs"].push_back(ChatToken(other));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

Json CompletionLogprobs(const std::vector<relay::TokenLogprob>& tokens, int64_t text_offset) {
  Json names = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
  for (const relay::TokenLogprob& token : tokens) {
    names.push_back(token.token);
    values.push_back(Finite(token.logprob));
    Json top = Json::object();
    for (const relay::TokenLogprob& other : token.top) top[other.token] = Finite(other.logprob);
    top[token.token] = Finite(token.logprob);  // one more than was asked for, where it is none of the most likely
    tops.push_back(std::move(top));
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

Json ModelJson(const relay::ModelInfo& model, int64_t created_s) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", created_s},
          {"owned_by", "swiftcache"},
          {"max_model_len", model.max_model_len_tokens}};
}

}  // namespace

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

std::string ResponseWriter::Whole(const std::vector<Choice>& choices, const UsageTotals& usage) const {
  Json list = Json::array();
  for (size_t i = 0; i < choices.size(); ++i) {
    Json logprobs = Logprobs(options_, choices[i], 0);
    Json finish = FinishJson(choices[i].finish);
    if (options_.endpoint == Endpoint::kChat) {
      list.push_back({{"index", i},
                      {"message", {{"role", "assistant"}, {"content", choices[i].text}}},
                      {"logprobs", std::move(logprobs)},
                      {"finish_reason", std::move(finish)}});
    } else {
      list.push_back(TextChoice(static_cast<int32_t>(i), choices[i].text, std::move(logprobs), std::move(finish)));
    }
  }
  Json whole = Envelope(options_, id_, created_s_, std::move(list));
  whole["usage"] = UsageJson(usage);
  return Dump(whole);
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
