// SPDX-License-Identifier: Apache-2.0
// Pings engines that the broker has lost, until they stop answering: the broker may be cut off from an engine that the
// gateway can still reach.
//
//   EngineProber prober({}, clock, [](const auto& link, const absl::Status& why) { link->MarkLost(why); });
//   prober.StartProbing(link, clock.Now());
//   prober.StopProbing(*link);  // the broker has found it again
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/sync/timed_mutex.h"
#include "gateway/fleet/engine_link.h"

namespace swiftcache::gateway::fleet {

/// Thread-safety: safe. Ownership: owns its threads; borrows the clock; holds links weakly: a link without another
/// owner is not probed any more. Errors: through `on_no_response`. The destructor waits for a ping under way (at most
/// `timeout`).
class EngineProber {
 public:
  struct Options {
    absl::Duration timeout = absl::Seconds(1);   // of one ping
    absl::Duration interval = absl::Seconds(1);  // from an answer to the next ping; silence is followed at once
    int silent_pings = 3;                        // in a row, and the engine is lost
    int threads = 16;                            // pings at one time
  };
  /// Called once for a link whose engine is lost, which is not probed again; with no lock held. An engine is lost at once
  /// where its address says so (nobody listens, or another engine does), and where it is merely silent after
  /// `silent_pings`: one that stood still for a while goes on, and so do its streams.
  using OnNoResponse = std::function<void(const std::shared_ptr<EngineLink>& link, const absl::Status& why)>;

  EngineProber(const Options& options, const Clock& clock, OnNoResponse on_no_response);
  ~EngineProber();

  /// The first ping is sent at `first`, or earlier if one was due already.
  void StartProbing(const std::shared_ptr<EngineLink>& link, absl::Time first) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Ends the pings. One under way that fails at this moment may still be reported.
  void StopProbing(const EngineLink& link) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Probed {
    std::weak_ptr<EngineLink> link;
    absl::Time next = absl::InfiniteFuture();
    bool under_way = false;
    bool answered = false;
    int silent = 0;  // pings in a row
  };

  void Work();
  std::shared_ptr<EngineLink> AwaitDueProbe() ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<EngineLink> DueProbe(absl::Time now, absl::Time& next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Whether the engine is lost, and was still to be probed.
  bool HandleResponse(const EngineLink& link, const absl::Status& response) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const Clock& clock_;
  const OnNoResponse on_no_response_;
  TimedMutex mutex_;
  int64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;                         // for which threads look again what is due
  std::map<const EngineLink*, Probed> probed_ ABSL_GUARDED_BY(mutex_);  // a weak pointer keeps the address from reuse
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace swiftcache::gateway::fleet
