// SPDX-License-Identifier: Apache-2.0
// Asks engines of which the broker hears nothing whether they are there, again and again until one does not answer: the
// broker may be cut off from an engine that serves us well.
//
//   RollCall roll_call({}, clock, [](const auto& link, const absl::Status& why) { link->Lose(why); });
//   roll_call.Ask(link, clock.Now());
//   roll_call.Trust(*link);  // the broker hears of it again
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "gateway/fleet/engine_link.h"

namespace swiftcache::gateway::fleet {

/// Thread-safety: safe. Ownership: owns its threads; borrows the clock; holds links weakly: one that nobody else holds
/// any more is not asked. Errors: through `on_silent`. The destructor waits for a question under way (at most
/// `timeout`).
class RollCall {
 public:
  struct Options {
    absl::Duration timeout = absl::Seconds(1);   // who has not answered by then is silent
    absl::Duration interval = absl::Seconds(1);  // from an answer to the next question
    int threads = 4;                             // questions at one time
  };
  /// Called once for each silent link, which is not asked again; with no lock held.
  using OnSilent = std::function<void(const std::shared_ptr<EngineLink>& link, const absl::Status& why)>;

  RollCall(const Options& options, const Clock& clock, OnSilent on_silent);
  ~RollCall();

  /// The first question is due at `first`, or earlier where one was due already.
  void Ask(const std::shared_ptr<EngineLink>& link, absl::Time first) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Ends the questions. One under way may still come out as silence, if it does so at this moment.
  void Trust(const EngineLink& link) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Asked {
    std::weak_ptr<EngineLink> link;
    absl::Time next = absl::InfiniteFuture();
    bool under_way = false;
    bool answered = false;
  };

  void Work();
  std::shared_ptr<EngineLink> Next() ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<EngineLink> Due(absl::Time now, absl::Time& next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Whether it is silent and still asked for.
  bool Note(const EngineLink& link, const absl::Status& answer) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const Clock& clock_;
  const OnSilent on_silent_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::map<const EngineLink*, Asked> asked_ ABSL_GUARDED_BY(mutex_);  // a weak pointer keeps the address from reuse
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace swiftcache::gateway::fleet
