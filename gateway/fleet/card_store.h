// SPDX-License-Identifier: Apache-2.0
// Fetches each model card once, on its own threads, builds tokenizer and chat template from it, and keeps these by the
// card's hash.
//
//   store.SetWanted({{"ab12...", {link}}});
//   absl::StatusOr<std::shared_ptr<const ModelText>> text = store.Text("ab12...");
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/sync/timed_mutex.h"
#include "gateway/fleet/engine_link.h"
#include "gateway/fleet/model_text.h"

namespace swiftcache::gateway::fleet {

/// Thread-safety: safe. Ownership: owns its threads, shares links and texts. Borrows the clock.
/// Errors: a failed fetch is retried, with an exponential backoff of each engine's own. An engine that comes is asked at
/// once, beside those that have failed before; otherwise one at a time. A card that cannot be parsed is not fetched again.
/// The destructor waits for fetches under way (at most `card_timeout`).
class CardStore {
 public:
  struct Options {
    absl::Duration card_timeout = absl::Seconds(5);
    absl::Duration min_backoff = absl::Milliseconds(100);
    absl::Duration max_backoff = absl::Seconds(10);
    int threads = 4;
    int64_t kept_unused = 8;                // cards that no engine has any more
    std::function<void()> on_outcome = {};  // a fetch has ended, well or not; called by the threads that fetch
  };
  /// By card hash: the engines that have the card.
  using Wanted = std::map<std::string, std::vector<std::shared_ptr<EngineLink>>>;

  CardStore(const Options& options, const Clock& clock);
  ~CardStore();

  void SetWanted(Wanted wanted) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Of each card that engines have, a fetch has ended.
  bool HasTriedAll() const ABSL_LOCKS_EXCLUDED(mutex_);
  /// UNAVAILABLE while it is being fetched (with the last error), or why the card cannot be used.
  absl::StatusOr<std::shared_ptr<const ModelText>> Text(const std::string& hash) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Source {
    std::shared_ptr<EngineLink> engine;
    int64_t failures = 0;
    absl::Time next_attempt = absl::InfinitePast();
    bool loading = false;
  };
  struct Slot {
    std::vector<Source> sources;
    absl::StatusOr<std::shared_ptr<const ModelText>> text = absl::UnavailableError("not fetched yet");
    bool tried = false;
  };
  struct Job {
    std::string hash;
    std::shared_ptr<EngineLink> engine;
  };

  void Work();
  std::optional<Job> NextJob() ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<Job> DueJob(absl::Time now, absl::Time& next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<const ModelText>> Load(const Job& job) const;
  void Keep(const Job& job, absl::StatusOr<std::shared_ptr<const ModelText>> text) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Duration Backoff(int64_t failures) const;
  void DropUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const Clock& clock_;
  mutable TimedMutex mutex_;
  int64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;  // for which threads look again what is due
  std::map<std::string, Slot> slots_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace swiftcache::gateway::fleet
