// SPDX-License-Identifier: Apache-2.0
// The relay over the engines of a fleet: checks a request, tokenises it once, sends it to an engine.
//
//   ASSIGN_OR_RETURN(auto relay, RelayImpl::Create({.id_prefix = "gw-1f2e"}, *fleet, clock, metrics));
//   ASSIGN_OR_RETURN(auto call, relay->Generate(std::move(request), sink));
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "common/sync/timed_mutex.h"
#include "gateway/fleet/fleet.h"
#include "gateway/relay/relay.h"
#include "gateway/relay/relay_call.h"
#include "gateway/relay/relay_metrics.h"
#include "gateway/relay/validate.h"

namespace swiftcache::gateway::relay {

/// Thread-safety: safe; Generate tokenises on the caller's thread. Ownership: borrows fleet, clock and metrics; they
/// outlive it. The destructor waits for calls under way (see Stop).
/// Errors, in this order: UNAVAILABLE (draining, or no model is served), NOT_FOUND (model), UNAVAILABLE (its card is
/// still being fetched), INVALID_ARGUMENT (its card cannot be used), then those of CheckRequest, PromptIds, PickEngine.
class RelayImpl final : public Relay {
 public:
  struct Options {
    Limits limits;
    std::string id_prefix = "req";  // of made request ids; unique per gateway process
    size_t first_engine = 0;        // where PickEngine begins: another one in each gateway
  };
  static absl::StatusOr<std::unique_ptr<RelayImpl>> Create(const Options& options, fleet::Fleet& fleet,
                                                           const Clock& clock, Metrics& metrics);
  ~RelayImpl() override;

  absl::StatusOr<std::shared_ptr<GenerateCall>> Generate(GenerateRequest request,
                                                         std::shared_ptr<GenerateSink> sink) override;
  absl::Status CheckSizes(const std::string& model, const RequestSizes& sizes) override;
  void Refused(GenerateRequest request, const absl::Status& why) override;
  absl::StatusOr<std::vector<int32_t>> Tokenize(const std::string& model, const std::variant<std::string, Chat>& input,
                                                bool parse_special) override;
  absl::StatusOr<std::vector<ModelInfo>> ListModels() override;
  absl::StatusOr<std::string> Detokenize(const std::string& model, std::span<const int32_t> ids) override;

  /// Counters of every model and engine that is served, and how many are READY, into the metrics: before they are read.
  void UpdateMetrics();
  /// From now on new requests get UNAVAILABLE; those under way go on.
  void RefuseNew() ABSL_LOCKS_EXCLUDED(mutex_);
  /// RefuseNew; waits for calls under way until `deadline`, ends the rest with UNAVAILABLE and waits for their sinks'
  /// OnDone.
  void Stop(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  RelayImpl(const Options& options, fleet::Fleet& fleet, const Clock& clock, Metrics& metrics);
  std::string NewId();
  absl::StatusOr<fleet::ModelView> FindModel(const std::string& name) const;
  absl::StatusOr<RelayCall::Inputs> Prepare(GenerateRequest& request);
  absl::StatusOr<std::vector<int32_t>> PromptOf(GenerateRequest& request, const fleet::ModelView& model);
  bool Enter() ABSL_LOCKS_EXCLUDED(mutex_);
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::shared_ptr<GenerateCall>> Begin(GenerateRequest request, std::shared_ptr<GenerateSink> sink,
                                                      const std::string& own_id);
  void Register(const std::shared_ptr<RelayCall>& call) ABSL_LOCKS_EXCLUDED(mutex_);
  void Forget(RelayCall* call) ABSL_LOCKS_EXCLUDED(mutex_);
  void Refuse(const GenerateRequest& request, const absl::Status& status, Refusal why);
  bool NoneEnters() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return entering_ == 0; }
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  fleet::Fleet& fleet_;
  const Clock& clock_;
  RelayMetrics metrics_;
  std::atomic<int64_t> next_id_{1};
  TimedMutex mutex_;
  bool refusing_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t entering_ ABSL_GUARDED_BY(mutex_) = 0;  // requests that were not refused and are no calls yet
  std::map<RelayCall*, std::weak_ptr<RelayCall>> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace swiftcache::gateway::relay
