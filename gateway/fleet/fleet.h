// SPDX-License-Identifier: Apache-2.0
// The gateway's view of the cluster: which engines serve which model, how loaded they are, and the way to each. Keeps
// the last known table while the broker is away, so that requests go on being served.
//
//   ASSIGN_OR_RETURN(auto fleet, Fleet::Create({}, MakeClient, clock));
//   if (std::optional<ModelView> model = fleet->Find("smollm2-chat")) ...
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "gateway/fleet/card_store.h"
#include "gateway/fleet/cluster.h"
#include "gateway/fleet/engine_link.h"
#include "gateway/fleet/engine_prober.h"
#include "gateway/fleet/model_text.h"

namespace swiftcache::gateway::fleet {

/// One engine at one moment.
struct EngineView {
  std::shared_ptr<EngineLink> link;  // null while the engine has no address
  EngineState state = EngineState::kUnspecified;
  int64_t max_model_len_tokens = 0;
  int64_t requests_of_others = 0;  // that it has beside those of this gateway, as far as is known
  bool suspect = false;            // a request failed there of late: it may be dead, or fail them all
};

/// One model at one moment. `text` is UNAVAILABLE until a card is there; it is that of the card that most READY engines
/// have. `engines` are those that share that card; while there is no text, all engines of the model.
struct ModelView {
  std::string name;
  absl::StatusOr<std::shared_ptr<const ModelText>> text = absl::UnavailableError("no engine");
  std::vector<EngineView> engines;  // by name

  /// The longest of its engines.
  int64_t max_model_len_tokens() const;
};

/// The requests under way on an engine are given up (EngineLink::MarkLost) when the engine is stalled, and when neither
/// the broker nor the gateway can reach it: the gateway pings an engine that the broker has lost, and uses it as long
/// as it answers. Where another process answers, that one may serve them: they are left alone. An engine that deregisters
/// keeps its requests, and so do all engines while the broker is away or restarts.
/// Thread-safety: safe. Ownership: owns clients (through links) and the card store; borrows the clock. Errors: Create:
/// INVALID_ARGUMENT (no client factory). Nothing else fails: what is unknown is absent.
class Fleet final : public ClusterSink {
 public:
  struct Options {
    CardStore::Options cards;  // on_outcome is the fleet's own
    EngineProber::Options prober;
    /// A restarted broker learns of engines only from their next heartbeats: for this long, engines that are missing
    /// from its first snapshot are not pinged.
    absl::Duration restart_grace = absl::Seconds(10);
    /// A model whose last engine left is known for this long: it may be starting again.
    absl::Duration remembered = absl::Minutes(10);
    /// An engine is suspect for this long after a failure there (EngineLink::NoteEnd): the broker notices by then whether
    /// it is dead, and where it fails all requests, one shows that it still does.
    absl::Duration suspected = absl::Seconds(3);
    std::function<void()> on_ready = {};  // once, by a thread of the fleet or of the sink; must not block
  };
  using ClientFactory = std::function<std::unique_ptr<EngineClient>(const EngineInfo&)>;
  static absl::StatusOr<std::unique_ptr<Fleet>> Create(const Options& options, ClientFactory make_client,
                                                       const Clock& clock);

  void OnSnapshot(const std::string& incarnation, std::vector<EngineStatus> engines) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnUpdate(EngineStatus engine) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnRemoved(const std::string& engine_name, bool died) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnBrokerLost() override ABSL_LOCKS_EXCLUDED(mutex_);

  /// Whether the broker has sent a snapshot at least once.
  bool has_snapshot() const ABSL_LOCKS_EXCLUDED(mutex_);
  /// From when, after the first snapshot, each card has been fetched, or could not be: requests can be taken.
  bool ready() const ABSL_LOCKS_EXCLUDED(mutex_);
  /// Since the broker was last heard: zero while it tells every change. Nothing before its first snapshot.
  std::optional<absl::Duration> table_age() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<ModelView> Find(const std::string& model_name) const ABSL_LOCKS_EXCLUDED(mutex_);
  /// Whether an engine of the model left within Options::remembered.
  bool LeftOfLate(const std::string& model_name) const ABSL_LOCKS_EXCLUDED(mutex_);
  /// Every model of the table, by name.
  std::vector<ModelView> Models() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    EngineStatus status;
    std::shared_ptr<EngineLink> link;
    int64_t requests_of_others = 0;  // EngineView's, when it was heard last
    bool probed = false;             // the broker has lost it; the prober pings it
  };
  Fleet(const Options& options, ClientFactory make_client, const Clock& clock);
  /// Returns the link if the engine has just become stalled: its requests must be notified without the lock.
  std::shared_ptr<EngineLink> Put(EngineStatus engine) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Replace(const std::string& incarnation, std::vector<EngineStatus> engines,
               std::vector<std::shared_ptr<EngineLink>>& stalled) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropAbsent(const std::vector<EngineStatus>& engines, bool new_broker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartProbing(Entry& entry, absl::Time first_probe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveUnresponsive(const std::shared_ptr<EngineLink>& link, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void Erase(std::map<std::string, Entry>::iterator engine) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LookWhetherReady() ABSL_LOCKS_EXCLUDED(mutex_);
  void UpdateWantedCards() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// `entries`: those of the model, one at least, by name.
  ModelView View(const std::string& model_name, const std::vector<const Entry*>& entries) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const ClientFactory make_client_;
  const Clock& clock_;
  mutable absl::Mutex mutex_;  // acquired before those of the card store, the prober and the links
  std::map<std::string, Entry> engines_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, absl::Time> left_ ABSL_GUARDED_BY(mutex_);  // by model: when an engine left last
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<std::string> incarnation_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Time> lost_broker_ ABSL_GUARDED_BY(mutex_);  // at that time; until the next snapshot
  CardStore cards_;
  EngineProber prober_;  // last: it calls RemoveUnresponsive
};

}  // namespace swiftcache::gateway::fleet
