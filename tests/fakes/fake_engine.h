// SPDX-License-Identifier: Apache-2.0
// An engine whose tokens the test makes up: it keeps what was submitted and hands out the sinks.
//
//   FakeEngine engine;
//   ... a request arrives through a door ...
//   engine.WaitForRequest("r1")->sink->OnTokens(event);
//   engine.End("r1", absl::OkStatus());
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/log/log.h"
#include "engine/exec/engine.h"

namespace swiftcache::engine {

/// Thread-safety: safe, but a sink is called by the test alone. What ended is kept: Cancel may be called by a sink, which
/// an engine would not destroy then.
class FakeEngine final : public exec::Engine {
 public:
  struct Live {
    exec::Request request;
    std::unique_ptr<exec::ResponseSink> sink;
  };

  void Start() override {}
  void Post(coordinator::LoopMessage) override { LOG(FATAL) << "a fake shares no memory"; }
  absl::Status Submit(exec::Request request, std::unique_ptr<exec::ResponseSink> sink) override {
    absl::MutexLock lock(&mutex_);
    if (!refuse_with_.ok()) return refuse_with_;
    std::string id = request.request_id;
    if (live_.contains(id)) return absl::AlreadyExistsError("request " + id + " is live");
    live_[std::move(id)] = {std::move(request), std::move(sink)};
    return absl::OkStatus();
  }
  void CountRefusal(const absl::Status& why) override {
    absl::MutexLock lock(&mutex_);
    refusals_.push_back(why.code());
  }
  void Cancel(const std::string& request_id, exec::RequestNumber number, std::optional<int32_t> index) override {
    if (before_cancel) before_cancel();
    if (index.has_value()) {
      absl::MutexLock lock(&mutex_);
      cancelled_.push_back(request_id + "[" + std::to_string(*index) + "]");
      return;
    }
    EndIf(request_id, absl::CancelledError("cancelled"),
          [&](const Live& live) { return live.request.number == number; });
    absl::MutexLock lock(&mutex_);
    cancelled_.push_back(request_id);  // last: who waits for it finds the request gone
  }
  exec::EngineLoad Load() const override {
    absl::MutexLock lock(&mutex_);
    return load_;
  }
  void UpdateMetrics() override {}
  int64_t max_model_len_tokens() const override { return 2048; }
  void Drain(absl::Time) override {}
  void ShutDown(absl::Time) override {}

  /// The live request; nullptr after 30 s without one.
  Live* WaitForRequest(const std::string& id) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return live_.contains(id); };
    return mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(30)) ? &live_[id] : nullptr;
  }
  /// Takes a request that did not come through the door under test; its events go nowhere.
  absl::Status SubmitOf(const std::string& id) {
    struct Nowhere final : exec::ResponseSink {
      void OnTokens(exec::TokenEvent) override {}
      void OnDone(absl::Status) override {}
    };
    exec::Request request;
    request.request_id = id;
    return Submit(std::move(request), std::make_unique<Nowhere>());
  }
  /// Ends a live request and forgets it; unknown ids are ignored.
  void End(const std::string& id, absl::Status status) {
    EndIf(id, std::move(status), [](const Live&) { return true; });
  }
  /// True when `id` was cancelled within 30 s; "r1[2]": a continuation of it alone, which goes on here.
  bool WaitForCancel(const std::string& id) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return std::find(cancelled_.begin(), cancelled_.end(), id) != cancelled_.end();
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(30));
  }
  size_t live() const {
    absl::MutexLock lock(&mutex_);
    return live_.size();
  }
  bool is_live(const std::string& id) const {
    absl::MutexLock lock(&mutex_);
    return live_.contains(id);
  }
  std::vector<absl::StatusCode> refusals() const {
    absl::MutexLock lock(&mutex_);
    return refusals_;
  }
  void set_load(const exec::EngineLoad& load) {
    absl::MutexLock lock(&mutex_);
    load_ = load;
  }
  void refuse_with(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    refuse_with_ = std::move(status);
  }

  std::function<void()> before_cancel;  // called by Cancel before it looks for the request; set before that; no waiting

 private:
  template <typename Condition>
  void EndIf(const std::string& id, absl::Status status, const Condition& condition) {
    exec::ResponseSink* sink = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      const auto it = live_.find(id);
      if (it == live_.end() || !condition(it->second)) return;
      sink = it->second.sink.get();
      ended_.push_back(live_.extract(it));
    }
    sink->OnDone(std::move(status));
    sink->OnStepEnd();
  }

  mutable absl::Mutex mutex_;
  std::map<std::string, Live> live_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::map<std::string, Live>::node_type> ended_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> cancelled_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::StatusCode> refusals_ ABSL_GUARDED_BY(mutex_);
  exec::EngineLoad load_ ABSL_GUARDED_BY(mutex_);
  absl::Status refuse_with_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace swiftcache::engine
