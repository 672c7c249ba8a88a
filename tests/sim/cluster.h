// SPDX-License-Identifier: Apache-2.0
// One run of the simulation: a broker, engines, seconds of faults, then peace, and what must hold throughout.
//
//   Cluster cluster({.seed = 7}, tally);
//   std::string failure = cluster.Run();   // empty: none
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/sim_engine.h"

namespace swiftcache::sim {

/// What holds after every event: one owner per extent (kv, grants and the broker's word agree), no wrong KV reaches a
/// token, a donor has its memory back by its deadline, a need is answered in time (need_watch.h), the state machines and
/// tables are sound, the contract of the transport is kept. In peace: the broker's table is what the engines hold, but for
/// what is on its way; after all was returned: no block, grant, mapping or entry is left. Thread-safety: none. Ownership:
/// owns everything in it; borrows the tally.
class Cluster {
 public:
  struct Options {
    uint64_t seed = 1;
    PlantedBug bug = PlantedBug::kNone;
    Faults faults = Faults::kAll;
    Micros broker_away = 0;  // with kBrokerAway
    bool traced = false;
  };
  Cluster(const Options& options, Tally& tally);

  /// What failed first; empty: nothing.
  std::string Run();

 private:
  void PlanFaults();
  Micros BrokerIsAway();
  int64_t CheckNothingEnded(const std::vector<engine::lease::Lease>& before, const std::string& cut_off);
  void CheckLimit();
  void OneFault();
  void CrashEngine(SimEngine& engine);
  void LeaveAndReturn(SimEngine& engine);
  void StopBroker(Micros length);
  void LimitAModel(Micros length);
  void CrashBroker();
  void ReplaceBroker();
  void StartBroker();
  void CutALink();
  void RunUntil(Micros when);
  void Heal();
  void CheckAgreement();
  std::string Disagreement() const;
  void CheckNothingIsLeft();
  SimEngine& AnyEngine();

  const Options options_;
  Tally& tally_;
  Simulator sim_;
  Network network_;
  LeaseChannels::Directory directory_;
  BrokerAddress address_;
  std::deque<std::unique_ptr<SimBroker>> brokers_;  // the last may answer; older ones are dead or only heard
  std::vector<std::unique_ptr<SimEngine>> engines_;
  std::optional<std::string> limited_;  // the model whose limit has to stand
};

}  // namespace swiftcache::sim
