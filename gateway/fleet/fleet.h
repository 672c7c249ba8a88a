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
#include "gateway/fleet/model_text.h"
#include "gateway/fleet/roll_call.h"

namespace swiftcache::gateway::fleet {

/// One engine at one moment.
struct EngineView {
  std::shared_ptr<EngineLink> link;  // null while the engine has no address
  EngineState state = EngineState::kUnspecified;
  int64_t max_model_len_tokens = 0;
  EngineLoad load;
};

/// One model at one moment. `text` is UNAVAILABLE until the card is there. `engines` are those that share that card;
/// while there is no text, all engines of the model.
struct ModelView {
  std::string name;
  absl::StatusOr<std::shared_ptr<const ModelText>> text = absl::UnavailableError("no engine");
  std::vector<EngineView> engines;  // by name

  /// The longest of its engines.
  int64_t max_model_len_tokens() const;
};

/// An engine that stands still loses what is under way on it (EngineLink::Lose), and so does one of which neither the
/// broker hears nor we: one that the broker has lost is asked by the gateway itself, and serves on as long as it
/// answers. One that takes its leave loses nothing, nor does any for the broker's absence or restart. Thread-safety:
/// safe. Ownership: owns clients (through links) and the card store; borrows the clock. Errors: Create:
/// INVALID_ARGUMENT (no client factory). Nothing else fails: what is unknown is absent.
class Fleet final : public ClusterSink {
 public:
  struct Options {
    CardStore::Options cards;
    RollCall::Options roll_call;
    /// A restarted broker learns of engines only from their next heartbeats: for this long, engines that its first
    /// snapshot lacks are not asked whether they are there.
    absl::Duration restart_grace = absl::Seconds(10);
  };
  using ClientFactory = std::function<std::unique_ptr<EngineClient>(const EngineInfo&)>;
  static absl::StatusOr<std::unique_ptr<Fleet>> Create(const Options& options, ClientFactory make_client,
                                                       const Clock& clock);

  void OnSnapshot(const std::string& incarnation, std::vector<EngineStatus> engines) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnUpdate(EngineStatus engine) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnRemoved(const std::string& engine_name, bool died) override ABSL_LOCKS_EXCLUDED(mutex_);

  /// The broker has been heard of at least once.
  bool has_snapshot() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<ModelView> Find(const std::string& model_name) const ABSL_LOCKS_EXCLUDED(mutex_);
  /// Every model of the table, by name.
  std::vector<ModelView> Models() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    EngineStatus status;
    std::shared_ptr<EngineLink> link;
    bool in_doubt = false;  // the broker has lost it; the roll call asks
  };
  Fleet(const Options& options, ClientFactory make_client, const Clock& clock);
  /// The link to an engine that begins to stand still with this, whose users must be told without the lock.
  std::shared_ptr<EngineLink> Put(EngineStatus engine) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Replace(const std::string& incarnation, std::vector<EngineStatus> engines,
               std::vector<std::shared_ptr<EngineLink>>& stalled) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropAbsent(const std::vector<EngineStatus>& engines, bool new_broker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Doubt(Entry& entry, absl::Time ask_at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveUp(const std::shared_ptr<EngineLink>& link, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void WantCards() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ModelView View(const std::string& model_name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const ClientFactory make_client_;
  const Clock& clock_;
  mutable absl::Mutex mutex_;  // before the card store's, the roll call's and the links'
  std::map<std::string, Entry> engines_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::string> incarnation_ ABSL_GUARDED_BY(mutex_);
  CardStore cards_;
  RollCall roll_call_;  // last: it calls GiveUp
};

}  // namespace swiftcache::gateway::fleet
