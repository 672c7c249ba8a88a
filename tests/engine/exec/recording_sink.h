// SPDX-License-Identifier: Apache-2.0
// A sink that keeps what it hears and checks that it hears it in the promised order.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "engine/exec/engine.h"

namespace swiftcache::engine::exec {

/// What became of a request. Thread-safety: safe, by its functions. Ownership: shared by the test and the sink, since
/// the engine destroys the sink.
class Recording {
 public:
  struct Output {
    std::vector<int32_t> tokens;
    std::vector<TokenLogprob> logprobs;
    std::optional<FinishReason> finish;
    std::optional<Usage> usage;
  };

  void Add(TokenEvent event) {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(status_.has_value()) << "an event after OnDone";
    Output& output = outputs_[event.index];
    EXPECT_FALSE(output.finish.has_value()) << "an event after the last of index " << event.index;
    EXPECT_EQ(event.usage.has_value(), event.finish.has_value() || (output.tokens.empty() && !event.token_ids.empty()));
    output.tokens.insert(output.tokens.end(), event.token_ids.begin(), event.token_ids.end());
    output.logprobs.insert(output.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    output.finish = event.finish;
    if (event.usage) output.usage = event.usage;
  }
  void Done(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(status_.has_value()) << "OnDone twice";
    status_ = std::move(status);
  }

  bool done() const {
    absl::MutexLock lock(&mutex_);
    return status_.has_value();
  }
  /// Waits for OnDone.
  absl::Status Wait() const {
    absl::MutexLock lock(&mutex_);
    const bool in_time = mutex_.AwaitWithTimeout(absl::Condition(this, &Recording::HasStatus), absl::Seconds(60));
    EXPECT_TRUE(in_time) << "no OnDone";
    return status_.value_or(absl::DeadlineExceededError("no OnDone"));
  }
  void WaitForTokens(size_t count) const {
    absl::MutexLock lock(&mutex_);
    const auto enough = [this, count]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      const auto first = outputs_.find(0);
      return first != outputs_.end() && first->second.tokens.size() >= count;
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(60))) << "too few tokens";
  }
  Output output(int32_t index = 0) const {
    absl::MutexLock lock(&mutex_);
    const auto found = outputs_.find(index);
    return found == outputs_.end() ? Output() : found->second;
  }
  std::vector<int32_t> tokens(int32_t index = 0) const { return output(index).tokens; }
  size_t num_outputs() const {
    absl::MutexLock lock(&mutex_);
    return outputs_.size();
  }

 private:
  bool HasStatus() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return status_.has_value(); }

  mutable absl::Mutex mutex_;
  std::map<int32_t, Output> outputs_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
};

class RecordingSink final : public ResponseSink {
 public:
  explicit RecordingSink(std::shared_ptr<Recording> recording) : recording_(std::move(recording)) {}
  void OnTokens(TokenEvent event) override { recording_->Add(std::move(event)); }
  void OnDone(absl::Status status) override { recording_->Done(std::move(status)); }

 private:
  const std::shared_ptr<Recording> recording_;
};

}  // namespace swiftcache::engine::exec
