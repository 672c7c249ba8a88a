// SPDX-License-Identifier: Apache-2.0
// An engine process of the simulation: the real coordinator, whose turns are taken in virtual time, and the real loop
// (engine_loop.h), with a broker client and a transport around them that are made for the simulation
// (sim_broker_client.h, lease_channel.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "engine/coordinator/coordinator.h"
#include "engine/exec/engine_metrics.h"
#include "tests/sim/blindfold.h"
#include "tests/sim/engine_loop.h"
#include "tests/sim/lease_channel.h"
#include "tests/sim/need_watch.h"
#include "tests/sim/sim_broker_client.h"

namespace swiftcache::sim {

/// So late the coordinator's thread may get its core, now and then.
inline constexpr Micros kLatestTurn = 2'000;

/// Thread-safety: none. Ownership: owns coordinator, loop, client and channels; borrows the rest.
class SimEngine {
 public:
  struct Options {
    int endpoint = 1;
    std::string name;
    int64_t num_blocks = 0, cells_per_block = 1;
    bool lends = true, borrows = true;
    bool calm = false;  // its steps are short, and it does not want back what it has lent
    PlantedBug bug = PlantedBug::kNone;
  };
  SimEngine(Simulator& sim, Network& network, LeaseChannels::Directory& directory, BrokerAddress& broker, Tally& tally,
            const Options& options);

  void Start();
  void Die();
  void StopProcess() { process_.Stop(); }
  void ContinueProcess();
  void HangLoop(Micros extra) { loop_->Hang(extra); }
  /// Returns everything and signs off; a moment later it may be killed.
  void Leave();
  bool leaving() const { return process_.alive() && leaving_; }
  void WatchBroke() { client_.WatchBroke(); }
  /// Wants memory that it has lent.
  void Need(int64_t blocks) { loop_->Burst(blocks); }
  /// No new wishes: what is there stays as it is.
  void Quiesce() { loop_->Quiesce(); }
  /// Gives everything back and takes everything back.
  void ReturnAll();

  Process& process() { return process_; }
  int endpoint() const { return options_.endpoint; }
  const std::string& instance() const { return instance_; }
  std::vector<engine::lease::Lease> given() const;
  std::vector<engine::lease::Lease> borrowed() const { return coordinator_->borrower().Held(); }
  /// What is left that should not be, after all was returned; empty: nothing.
  std::string Leftovers() const;
  int64_t ignored() const { return coordinator_->donor().ignored() + coordinator_->borrower().ignored(); }

 private:
  class ProcessClock final : public Clock {
   public:
    explicit ProcessClock(const Process& process) : process_(process) {}
    absl::Time Now() const override { return process_.LocalNow(); }

   private:
    const Process& process_;
  };

  broker::membership::EngineInfo Info() const;
  int64_t never_lent_blocks() const { return options_.lends ? 0 : options_.num_blocks; }
  /// After each event of the process.
  void TakeTurn();
  void PlanTurn(Micros when);

  // On the way from the coordinator to the loop.
  void ToLoop(engine::coordinator::LoopMessage message);
  void Look(engine::coordinator::ClearMessage& message) { message.extent = blindfold_.Seen(message.extent); }
  void Look(engine::coordinator::TakeBackMessage& message);
  void Look(const engine::coordinator::DrainMessage& message);
  void Look(const engine::coordinator::LoseMessage& message);
  void Look(const auto&) {}
  bool HasGivenUp(LeaseId id, int64_t cell) const;

  Simulator& sim_;
  Tally& tally_;
  const Options options_;
  const Blindfold blindfold_;
  Process process_;
  const ProcessClock clock_;
  Metrics metrics_;
  engine::exec::EngineMetrics loop_metrics_;
  LeaseChannels channels_;
  SimBrokerClient client_;
  NeedWatch needs_;

  // Of one life.
  std::string instance_;
  std::optional<engine::coordinator::Coordinator> coordinator_;
  std::optional<EngineLoop> loop_;
  bool leaving_ = false;
  absl::Time continued_at_ = absl::InfinitePast();
  Micros planned_turn_ = 0, next_turn_ = 0;
};

}  // namespace swiftcache::sim
