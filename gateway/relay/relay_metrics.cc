// SPDX-License-Identifier: Apache-2.0
#include "gateway/relay/relay_metrics.h"

#include <iterator>
#include <optional>
#include <utility>
#include <vector>

namespace swiftcache::gateway::relay {
namespace {

// What the gateway itself does with a request takes from microseconds to, for the longest prompts, seconds.
const std::vector<double> kGatewayBuckets = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                             0.1,    0.25,    0.5,    1,     2.5,    5,     10,   30,    60};

constexpr absl::Duration kRemembered = absl::Hours(24);  // a model without engines: somebody has seen the alert by then

const char* Name(Refusal why) {
  switch (why) {
    case Refusal::kInvalid:
      return "invalid";
    case Refusal::kUnknownModel:
      return "unknown_model";
    case Refusal::kTooLong:
      return "too_long";
    case Refusal::kNoEngine:
      return "no_engine";
    case Refusal::kDeadline:
      return "deadline";
    case Refusal::kDraining:
      return "draining";
    case Refusal::kCancelled:
      return "cancelled";
    case Refusal::kNoRoom:
      return "no_room";
  }
  return "invalid";
}

prometheus::Counter& EndedCounter(Metrics& metrics, const std::string& model_name, absl::StatusCode code) {
  return metrics.Counter("swiftcache_gateway_requests_total", "Requests that ended, by status code.",
                         {{"model_name", model_name}, {"code", absl::StatusCodeToString(code)}});
}

prometheus::Counter& RefusedCounter(Metrics& metrics, const std::string& model_name, Refusal why) {
  return metrics.Counter("swiftcache_gateway_refusals_total", "Requests that no engine saw, by reason.",
                         {{"model_name", model_name}, {"reason", Name(why)}});
}

prometheus::Counter& SentCounter(Metrics& metrics, const std::string& model_name, const std::string& engine) {
  return metrics.Counter("swiftcache_gateway_engine_requests_total",
                         "Requests sent to an engine, each attempt counted.",
                         {{"model_name", model_name}, {"engine", engine}});
}

prometheus::Counter& FailedCounter(Metrics& metrics, const std::string& model_name, const std::string& engine,
                                   absl::StatusCode code) {
  return metrics.Counter("swiftcache_gateway_engine_failures_total",
                         "Requests sent to an engine that did not end OK there, by status code.",
                         {{"model_name", model_name}, {"engine", engine}, {"code", absl::StatusCodeToString(code)}});
}

// From zero: a series that begins with its first event has no rate then. Other codes come with their first request.
void BeginCounters(Metrics& metrics, const std::string& model_name) {
  using Code = absl::StatusCode;
  for (const Code code : {Code::kOk, Code::kCancelled, Code::kInvalidArgument, Code::kDeadlineExceeded, Code::kNotFound,
                          Code::kResourceExhausted, Code::kOutOfRange, Code::kUnavailable, Code::kInternal,
                          Code::kUnknown, Code::kDataLoss}) {
    EndedCounter(metrics, model_name, code);
  }
  for (const Refusal why : {Refusal::kInvalid, Refusal::kUnknownModel, Refusal::kTooLong, Refusal::kNoEngine,
                            Refusal::kDeadline, Refusal::kDraining, Refusal::kCancelled, Refusal::kNoRoom}) {
    RefusedCounter(metrics, model_name, why);
  }
}

}  // namespace

Refusal RefusalOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return Refusal::kUnknownModel;
    case absl::StatusCode::kOutOfRange:
      return Refusal::kTooLong;
    case absl::StatusCode::kUnavailable:
      return Refusal::kNoEngine;
    case absl::StatusCode::kDeadlineExceeded:
      return Refusal::kDeadline;
    case absl::StatusCode::kCancelled:
      return Refusal::kCancelled;
    case absl::StatusCode::kResourceExhausted:
      return Refusal::kNoRoom;
    default:
      return Refusal::kInvalid;
  }
}

// Looked up once: some change with every token.
struct RelayMetrics::OfModel {
  OfModel(Metrics& metrics, const Metrics::Labels& labels)
      : tokenize(metrics.Histogram("swiftcache_gateway_tokenize_seconds",
                                   "Time to render a chat's template and to turn the text into tokens.",
                                   kGatewayBuckets, labels)),
        queue(metrics.Histogram("swiftcache_gateway_queue_time_seconds",
                                "From a request's arrival at the gateway to its first engine.", kGatewayBuckets,
                                labels)),
        first_token(metrics.Histogram("swiftcache_gateway_time_to_first_token_seconds",
                                      "From a request's arrival at the gateway to its first token leaving it.",
                                      kTtftBuckets, labels)),
        latency(metrics.Histogram("swiftcache_gateway_e2e_request_latency_seconds",
                                  "From a request's arrival to the end of its answer, of those that ended OK.",
                                  kRequestBuckets, labels)),
        retries(metrics.Counter("swiftcache_gateway_retries_total",
                                "Requests sent to another engine before their first token.", labels)),
        prompt_tokens(metrics.Counter("swiftcache_gateway_prompt_tokens_total",
                                      "Tokens of prompts that were sent to an engine, each prompt once.", labels)),
        generation_tokens(metrics.Counter("swiftcache_gateway_generation_tokens_total",
                                          "Tokens that were passed on to clients.", labels)) {}

  prometheus::Histogram &tokenize, &queue, &first_token, &latency;
  prometheus::Counter &retries, &prompt_tokens, &generation_tokens;
};

RelayMetrics::RelayMetrics(Metrics& metrics)
    : metrics_(metrics), running_(metrics.Gauge("swiftcache_gateway_running_requests", "Requests under way.")) {
  BeginCounters(metrics, "");
}

RelayMetrics::~RelayMetrics() = default;

RelayMetrics::OfModel& RelayMetrics::Of(const std::string& model_name) {
  absl::MutexLock lock(&mutex_);
  std::unique_ptr<OfModel>& model = models_[model_name];
  if (model == nullptr) {
    model = std::make_unique<OfModel>(metrics_, Metrics::Labels{{"model_name", model_name}});
    BeginCounters(metrics_, model_name);
  }
  return *model;
}

void RelayMetrics::Serves(const std::string& model_name, const std::string& engine) {
  Of(model_name);
  SentCounter(metrics_, model_name, engine);
  for (const auto code : {absl::StatusCode::kUnavailable, absl::StatusCode::kInternal}) {
    FailedCounter(metrics_, model_name, engine, code);
  }
}

void RelayMetrics::ReadyEngines(const std::map<std::string, int64_t>& by_model, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  for (const auto& [model_name, ready] : by_model) {
    auto known = served_.find(model_name);
    if (known == served_.end()) {
      Served is_new{metrics_.OptionalGauge("swiftcache_gateway_model_engines",
                                           "READY engines of a model; 0 for a day after its last one was gone.",
                                           {{"model_name", model_name}}),
                    now};
      known = served_.emplace(model_name, std::move(is_new)).first;
    }
    known->second.last = now;
  }
  for (auto model = served_.begin(); model != served_.end();) {
    const auto next = std::next(model);
    const auto ready = by_model.find(model->first);
    const bool forgotten = now - model->second.last > kRemembered;
    const double engines = ready == by_model.end() ? 0 : static_cast<double>(ready->second);
    model->second.ready_engines.Set(forgotten ? std::nullopt : std::optional(engines));
    if (forgotten) served_.erase(model);
    model = next;
  }
}

void RelayMetrics::NotStarted(const std::string& model_name, const absl::Status& status) {
  EndedCounter(metrics_, model_name, status.code()).Increment();
}

void RelayMetrics::Refused(const std::string& model_name, Refusal why) {
  RefusedCounter(metrics_, model_name, why).Increment();
}

void RelayMetrics::Tokenized(const std::string& model_name, absl::Duration time) {
  Of(model_name).tokenize.Observe(absl::ToDoubleSeconds(time));
}

void RelayMetrics::Dispatched(const std::string& model_name, absl::Duration since_arrival, int64_t prompt_tokens) {
  OfModel& model = Of(model_name);
  model.queue.Observe(absl::ToDoubleSeconds(since_arrival));
  model.prompt_tokens.Increment(static_cast<double>(prompt_tokens));
}

void RelayMetrics::Sent(const std::string& model_name, const std::string& engine) {
  SentCounter(metrics_, model_name, engine).Increment();
}

void RelayMetrics::Failed(const std::string& model_name, const std::string& engine, const absl::Status& why) {
  FailedCounter(metrics_, model_name, engine, why.code()).Increment();
}

void RelayMetrics::Retried(const std::string& model_name) { Of(model_name).retries.Increment(); }

void RelayMetrics::FirstToken(const std::string& model_name, absl::Duration time_to_first_token) {
  Of(model_name).first_token.Observe(absl::ToDoubleSeconds(time_to_first_token));
}

void RelayMetrics::Generated(const std::string& model_name, int64_t tokens) {
  Of(model_name).generation_tokens.Increment(static_cast<double>(tokens));
}

void RelayMetrics::Ended(const std::string& model_name, const absl::Status& status, absl::Duration latency) {
  running_.Decrement();
  NotStarted(model_name, status);
  if (status.ok()) Of(model_name).latency.Observe(absl::ToDoubleSeconds(latency));
}

}  // namespace swiftcache::gateway::relay
