// SPDX-License-Identifier: Apache-2.0
// The engine's client of the broker: reserves a name, keeps it by heartbeats, registers again after a restart of the
// broker, and deregisters.
//
//   ASSIGN_OR_RETURN(auto broker, BrokerClient::Create({.broker = "127.0.0.1:50050", .instance_id = id}));
//   ASSIGN_OR_RETURN(std::string name, broker->Reserve(description, BrokerClient::NameChoice::kExactly));
//   broker->Start();
//   broker->Ready(address, [&] { return engine->Load(); }, {});
//   ... broker->Draining(); ... broker->Leave();
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/backend/kv_layout.h"
#include "engine/coordinator/lease_broker.h"
#include "engine/exec/engine_load.h"
#include "engine/lease/account.h"
#include "engine/lease/lease.h"
#include "engine/rpc/lease_client.h"

namespace swiftcache::v1 {
class LeaseLimit;
}

namespace swiftcache::engine::rpc {

/// What an engine registers before it is ready.
struct EngineDescription {
  std::string name, model_name;
  backend::KvLayout kv;
  int64_t num_blocks = 0;
  int64_t max_model_len_tokens = 0;
  std::string model_card_hash;
};

/// What an engine that shares its KV memory adds, once it is ready.
struct SharingDescription {
  std::string lease_channel, node_id;
  int64_t page_bytes = 0;
  int64_t never_lent_blocks = 0;  // as Donor's
  bool borrows = false;
  std::function<std::vector<lease::Lease>()> given;  // leases that it gives: sent with each registration
  std::function<std::map<std::string, lease::Account>()>
      accounts;  // of these, by the borrowers' model: goes with heartbeats
  std::function<void(const coordinator::LeaseTerms&)> registered;       // called after each registration
  std::function<void(const std::map<std::string, int64_t>&)> weighted;  // Coordinator::OnWeights, when they change
};

/// An engine serves whether or not the broker is there: a broker that is down, or was never there, is tried again until
/// it answers. Order: Reserve, Start, Ready, Draining, Leave; each at most once, Leave from any state. Thread-safety:
/// safe. Ownership: owns its thread and connection. Errors: Reserve's only, which logs nothing; later ones are logged.
class BrokerClient {
 public:
  struct Options {
    std::string broker;       // host:port; "": there is no broker
    std::string instance_id;  // unique per process: InstanceIdOf the
    std::string token;        // that only this process and the broker know
    absl::Duration rpc_timeout = absl::Seconds(1);
    absl::Duration max_reconnect_backoff = absl::Milliseconds(200);  // below half a heartbeat
  };
  enum class NameChoice {
    kExactly,     // the name, or an error
    kWithSuffix,  // the name, or with -2, -3, ... the first that is free
  };
  static std::unique_ptr<BrokerClient> Create(const Options& options);
  virtual ~BrokerClient() = default;

  /// Registers a name (state STARTING) and returns it. If the name is taken, waits once until its holder would have
  /// expired, since that may be an instance that was just killed. ALREADY_EXISTS: a live engine has it.
  /// INVALID_ARGUMENT: the broker refuses the description. A broker that does not answer is no error: the name is
  /// registered when it does and the engine is Ready.
  virtual absl::StatusOr<std::string> Reserve(const EngineDescription& description, NameChoice choice) = 0;
  /// The name is held on this machine, by an engine of which the broker knows nothing: takes the next one, by which the
  /// broker hears of this engine from then on. REQUIRES: it is not Ready. Nothing: kExactly, or there is none left.
  virtual std::optional<std::string> TakeNextName() = 0;
  /// The name and the broker's incarnation ("": not registered now), which the lease RPCs need.
  virtual LeaseClient::Identity identity() const = 0;
  /// Since the broker last took a heartbeat or a registration, or since Create where it took none. Nothing: there is no
  /// broker.
  virtual std::optional<absl::Duration> heartbeat_age() const = 0;
  /// A limit that the broker has told: goes with each later registration, so that a restarted broker hears of it.
  virtual void KeepLimit(const v1::LeaseLimit& limit) = 0;
  /// A broker of this incarnation has answered a call of this engine. Where two answer in turns, one loud line says so.
  virtual void NoteIncarnation(const std::string& incarnation) = 0;
  /// Starts the heartbeats, without which the name is lost again.
  virtual void Start() = 0;
  /// `load` is called by the heartbeat thread until Leave.
  virtual void Ready(const std::string& address, std::function<exec::EngineLoad()> load,
                     const SharingDescription& sharing = {}) = 0;
  virtual void Draining() = 0;
  /// Takes the engine out of the broker's table and ends the heartbeats.
  virtual void Leave() = 0;
};

}  // namespace swiftcache::engine::rpc
