// SPDX-License-Identifier: Apache-2.0
// The gateway's metrics of requests.
//
//   RelayMetrics relay_metrics(metrics);
//   relay_metrics.Ended("smollm2-chat", absl::OkStatus(), absl::Seconds(2));
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "gateway/relay/remembered.h"

namespace swiftcache::gateway::relay {

/// Why no engine saw a request.
enum class Refusal { kInvalid, kUnknownModel, kTooLong, kNoEngine, kDeadline, kDraining, kCancelled, kNoRoom };

/// By the status that the client gets; kDraining has none of its own. REQUIRES: !status.ok().
Refusal RefusalOf(const absl::Status& status);

/// Thread-safety: safe. Ownership: borrows the registry. Errors: none. Units: seconds, tokens.
/// `model_name` is "" for requests that named no served model, so that clients cannot make new labels. Who registers
/// engines can: the metrics of a model and of an engine go as Remembered says, and begin at zero when it comes back.
class RelayMetrics {
 public:
  explicit RelayMetrics(Metrics& metrics);
  ~RelayMetrics();

  /// `engine` serves `model_name`: their counters are there from now on, so that the first event is an increase.
  void Serves(const std::string& model_name, const std::string& engine, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  /// At `now`, for which Serves has named all engines, how many READY ones each model has that is served. One that is
  /// served no more has none, and is forgotten a day later.
  void ReadyEngines(const std::map<std::string, int64_t>& by_model, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  /// A request has ended that was never started.
  void NotStarted(const std::string& model_name, const absl::Status& status);
  /// No engine saw a request, whether it was started or not.
  void Refused(const std::string& model_name, Refusal why);

  /// Text or a chat became token ids, or was found to be unfit.
  void Tokenized(const std::string& model_name, absl::Duration time);
  void Started() { running_.Increment(); }
  /// A request goes to its first engine.
  void Dispatched(const std::string& model_name, absl::Duration since_arrival, int64_t prompt_tokens);
  /// An attempt goes to an engine.
  void Sent(const std::string& model_name, const std::string& engine);
  /// An attempt did not end OK, and not as the request was cancelled. REQUIRES: !why.ok().
  void Failed(const std::string& model_name, const std::string& engine, const absl::Status& why);
  void Retried(const std::string& model_name);
  void FirstToken(const std::string& model_name, absl::Duration time_to_first_token);
  void Generated(const std::string& model_name, int64_t tokens);
  /// A request that was started has ended.
  void Ended(const std::string& model_name, const absl::Status& status, absl::Duration latency);

 private:
  struct OfModel;
  std::shared_ptr<OfModel> Of(const std::string& model_name) ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<OfModel> Find(const std::string& model_name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Metrics> Of(const std::string& model_name, const std::string& engine) ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<Metrics> Find(const std::string& model_name, const std::string& engine)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Of what ended and was refused, for "", too.
  std::shared_ptr<Metrics> CountersOf(const std::string& model_name) ABSL_LOCKS_EXCLUDED(mutex_);

  Metrics& metrics_;
  prometheus::Gauge& running_;
  const std::shared_ptr<Metrics> of_no_model_;
  absl::Mutex mutex_;
  Remembered<std::string, OfModel> models_ ABSL_GUARDED_BY(mutex_);
  Remembered<std::pair<std::string, std::string>, Metrics> engines_ ABSL_GUARDED_BY(mutex_);  // by model and engine
};

}  // namespace swiftcache::gateway::relay
