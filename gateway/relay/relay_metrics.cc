// SPDX-License-Identifier: Apache-2.0
#include "gateway/relay/relay_metrics.h"

#include <utility>
#include <vector>

namespace swiftcache::gateway::relay {
namespace {

// What the gateway itself does with a request takes from microseconds to, for the longest prompts, seconds.
const std::vector<double> kGatewayBuckets = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                             0.1,    0.25,    0.5,    1,     2.5,    5,     10,   30,    60};

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

// `of`: the metrics of a model, or of one of its engines.
prometheus::Counter& EndedCounter(Metrics& of, absl::StatusCode code) {
  return of.Counter("swiftcache_gateway_requests_total", "Requests that ended, by status code.",
                    {{"code", absl::StatusCodeToString(code)}});
}

prometheus::Counter& RefusedCounter(Metrics& of, Refusal why) {
  return of.Counter("swiftcache_gateway_refusals_total", "Requests that no engine saw, by reason.",
                    {{"reason", Name(why)}});
}

prometheus::Counter& SentCounter(Metrics& of) {
  return of.Counter("swiftcache_gateway_engine_requests_total", "Requests sent to an engine, each attempt counted.");
}

prometheus::Counter& FailedCounter(Metrics& of, absl::StatusCode code) {
  return of.Counter("swiftcache_gateway_engine_failures_total",
                    "Requests sent to an engine that did not end OK there, by status code.",
                    {{"code", absl::StatusCodeToString(code)}});
}

// From zero: a series that begins with its first event has no rate then. Other codes come with their first request.
void BeginCounters(Metrics& of) {
  using Code = absl::StatusCode;
  for (const Code code : {Code::kOk, Code::kCancelled, Code::kInvalidArgument, Code::kDeadlineExceeded, Code::kNotFound,
                          Code::kResourceExhausted, Code::kOutOfRange, Code::kUnavailable, Code::kInternal,
                          Code::kUnknown, Code::kDataLoss}) {
    EndedCounter(of, code);
  }
  for (const Refusal why : {Refusal::kInvalid, Refusal::kUnknownModel, Refusal::kTooLong, Refusal::kNoEngine,
                            Refusal::kDeadline, Refusal::kDraining, Refusal::kCancelled, Refusal::kNoRoom}) {
    RefusedCounter(of, why);
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
  explicit OfModel(std::shared_ptr<Metrics> of)
      : metrics(std::move(of)),
        tokenize(metrics->Histogram("swiftcache_gateway_tokenize_seconds",
                                    "Time to render a chat's template and to turn the text into tokens.",
                                    kGatewayBuckets)),
        queue(metrics->Histogram("swiftcache_gateway_queue_time_seconds",
                                 "From a request's arrival at the gateway to its first engine.", kGatewayBuckets)),
        first_token(metrics->Histogram("swiftcache_gateway_time_to_first_token_seconds",
                                       "From a request's arrival at the gateway to its first token leaving it.",
                                       kTtftBuckets)),
        latency(metrics->Histogram("swiftcache_gateway_e2e_request_latency_seconds",
                                   "From a request's arrival to the end of its answer, of those that ended OK.",
                                   kRequestBuckets)),
        retries(metrics->Counter("swiftcache_gateway_retries_total",
                                 "Requests sent to another engine before their first token.")),
        prompt_tokens(metrics->Counter("swiftcache_gateway_prompt_tokens_total",
                                       "Tokens of prompts that were sent to an engine, each prompt once.")),
        generation_tokens(
            metrics->Counter("swiftcache_gateway_generation_tokens_total", "Tokens that were passed on to clients.")),
        ready_engines(metrics->OptionalGauge("swiftcache_gateway_model_engines",
                                             "READY engines of a model; 0 for a day after its last one was gone.")) {
    BeginCounters(*metrics);
  }

  const std::shared_ptr<Metrics> metrics;
  prometheus::Histogram &tokenize, &queue, &first_token, &latency;
  prometheus::Counter &retries, &prompt_tokens, &generation_tokens;
  // Guarded by RelayMetrics::mutex_.
  OptionalGauge ready_engines;
  bool was_served = false;
};

RelayMetrics::RelayMetrics(Metrics& metrics)
    : metrics_(metrics),
      running_(metrics.Gauge("swiftcache_gateway_running_requests", "Requests under way.")),
      of_no_model_(metrics.Part({{"model_name", ""}})) {
  BeginCounters(*of_no_model_);
}

RelayMetrics::~RelayMetrics() = default;

std::shared_ptr<RelayMetrics::OfModel> RelayMetrics::Of(const std::string& model_name) {
  absl::MutexLock lock(&mutex_);
  return Find(model_name);
}

std::shared_ptr<RelayMetrics::OfModel> RelayMetrics::Find(const std::string& model_name) {
  return models_.Get(model_name, [&] {
    return std::make_shared<OfModel>(metrics_.Part({{"model_name", model_name}}));
  });
}

std::shared_ptr<Metrics> RelayMetrics::Of(const std::string& model_name, const std::string& engine) {
  absl::MutexLock lock(&mutex_);
  return Find(model_name, engine);
}

std::shared_ptr<Metrics> RelayMetrics::Find(const std::string& model_name, const std::string& engine) {
  return engines_.Get(std::pair(model_name, engine), [&] {
    return metrics_.Part({{"model_name", model_name}, {"engine", engine}});
  });
}

std::shared_ptr<Metrics> RelayMetrics::CountersOf(const std::string& model_name) {
  return model_name.empty() ? of_no_model_ : Of(model_name)->metrics;
}

void RelayMetrics::Serves(const std::string& model_name, const std::string& engine, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const std::shared_ptr<Metrics> of_engine = Find(model_name, engine);
  engines_.See(std::pair(model_name, engine), now);
  SentCounter(*of_engine);
  for (const auto code : {absl::StatusCode::kUnavailable, absl::StatusCode::kInternal}) FailedCounter(*of_engine, code);
}

void RelayMetrics::ReadyEngines(const std::map<std::string, int64_t>& by_model, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  for (const auto& [model_name, ready] : by_model) {
    Find(model_name)->was_served = true;
    models_.See(model_name, now);
  }
  models_.Forget(now);
  engines_.Forget(now);
  models_.ForEach([&](const std::string& model_name, OfModel& model) {
    const auto ready = by_model.find(model_name);
    if (model.was_served) model.ready_engines.Set(ready == by_model.end() ? 0 : static_cast<double>(ready->second));
  });
}

void RelayMetrics::NotStarted(const std::string& model_name, const absl::Status& status) {
  EndedCounter(*CountersOf(model_name), status.code()).Increment();
}

void RelayMetrics::Refused(const std::string& model_name, Refusal why) {
  RefusedCounter(*CountersOf(model_name), why).Increment();
}

void RelayMetrics::Tokenized(const std::string& model_name, absl::Duration time) {
  Of(model_name)->tokenize.Observe(absl::ToDoubleSeconds(time));
}

void RelayMetrics::Dispatched(const std::string& model_name, absl::Duration since_arrival, int64_t prompt_tokens) {
  const std::shared_ptr<OfModel> model = Of(model_name);
  model->queue.Observe(absl::ToDoubleSeconds(since_arrival));
  model->prompt_tokens.Increment(static_cast<double>(prompt_tokens));
}

void RelayMetrics::Sent(const std::string& model_name, const std::string& engine) {
  SentCounter(*Of(model_name, engine)).Increment();
}

void RelayMetrics::Failed(const std::string& model_name, const std::string& engine, const absl::Status& why) {
  FailedCounter(*Of(model_name, engine), why.code()).Increment();
}

void RelayMetrics::Retried(const std::string& model_name) { Of(model_name)->retries.Increment(); }

void RelayMetrics::FirstToken(const std::string& model_name, absl::Duration time_to_first_token) {
  Of(model_name)->first_token.Observe(absl::ToDoubleSeconds(time_to_first_token));
}

void RelayMetrics::Generated(const std::string& model_name, int64_t tokens) {
  Of(model_name)->generation_tokens.Increment(static_cast<double>(tokens));
}

void RelayMetrics::Ended(const std::string& model_name, const absl::Status& status, absl::Duration latency) {
  running_.Decrement();
  NotStarted(model_name, status);
  if (status.ok()) Of(model_name)->latency.Observe(absl::ToDoubleSeconds(latency));
}

}  // namespace swiftcache::gateway::relay
