// SPDX-License-Identifier: Apache-2.0
// An engine process of the simulation: the real halves of its leases, with a coordinator, a broker client, a loop and a
// transport around them.
//
// What is around them is made for the simulation. Besides what it leaves out, it does two things otherwise than
// engine/coordinator; what depends on them is proved by its own tests and by those of processes:
//   - It revokes all that a ScaleUp advises, and chooses by itself only where there is no advice. Coordinator stops
//     where the need is covered, and adds of its own what the advice lacks.
//   - Each wish for memory is a request of a new key. Coordinator repeats the key of one that was not answered.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/lease/borrower.h"
#include "engine/lease/donor.h"
#include "tests/sim/lease_channel.h"
#include "tests/sim/sim_broker.h"
#include "tests/sim/step_loop.h"

namespace swiftcache::sim {

inline constexpr Micros kRpcTimeout = 100'000;
inline constexpr absl::Duration kTtl = absl::Milliseconds(600), kRevokeDeadline = absl::Milliseconds(30);
/// Local timers fire on a microsecond; clocks of other rates round.
inline constexpr absl::Duration kTimerSlack = absl::Microseconds(10);

/// Who answers on the broker's address now.
struct BrokerAddress {
  SimBroker* broker = nullptr;
};

/// Thread-safety: none. Ownership: owns loop, halves and channels; borrows the rest.
class SimEngine final : public ChannelEvents, public LoopEvents {
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
  /// Its watch stream broke; it notices after a while.
  void WatchBroke();
  /// Wants memory that it has lent.
  void Need(int64_t blocks);
  /// No new wishes: what is there stays as it is.
  void Quiesce();
  /// Gives everything back and takes everything back.
  void ReturnAll();

  Process& process() { return process_; }
  int endpoint() const { return options_.endpoint; }
  const std::string& instance() const { return instance_; }
  const std::string& incarnation() const { return incarnation_; }
  std::vector<engine::lease::Lease> given() const;
  std::vector<engine::lease::Lease> borrowed() const { return borrower_->Held(); }
  /// What is left that should not be, after all was returned; empty: nothing.
  std::string Leftovers() const;
  int64_t ignored() const { return donor_->ignored() + borrower_->ignored(); }

 private:
  // ChannelEvents.
  void OnBorrowerOpened(LeaseId id) override;
  void OnRenewal(LeaseId id) override;
  void OnReleased(LeaseId id) override;
  void OnBorrowerGone(LeaseId id) override;
  void OnOpened(LeaseId id, bool ok) override;
  void OnRenewed(LeaseId id) override;
  void OnRevoked(LeaseId id, absl::Duration time_left) override;
  void OnDonorGone(LeaseId id) override;
  void OnStored(int64_t ticket, bool ok) override;
  bool InUse(LeaseId id) const override { return loop_->InUse(id); }
  // LoopEvents: the coordinator hears of them a moment later.
  void OnCleared(LeaseId id, bool ok) override;
  void OnDrained(LeaseId id) override;
  void OnDropped(LeaseId id) override;
  void OnGenerationChanged(LeaseId id) override;
  void OnWantsMemory(int64_t blocks) override;
  void OnNeedsOwn(int64_t blocks) override;

  // The broker's client (sim_engine_client.cc).
  using Serve = std::function<std::function<void()>(SimBroker&)>;
  /// Calls whoever has the broker's address when it arrives; where nobody has, it fails at once, as a refused
  /// connection does.
  void Call(Serve serve, std::function<void()> on_timeout, Micros timeout = kRpcTimeout, bool may_repeat = true);
  void Register();
  void OpenWatch();
  void KeepBeating();
  void KeepReporting();
  void Hear(const WatchWord& word, int64_t stream);
  void Tell(const engine::lease::Lease& lease);
  void SendReports();
  void Reported(const absl::Status& status);
  void RequestMemory(int64_t blocks);
  broker::loop::Caller caller() const { return {options_.name, instance_, incarnation_}; }
  broker::membership::EngineInfo Info() const;

  void AfterEach();
  void DoAll();
  void TookBack(const engine::lease::Donor::TakeBack& action);
  engine::lease::Lease Blinded(engine::lease::Lease lease) const;
  engine::lease::Lease Seen(engine::lease::Lease lease) const;
  void PlanTick();

  struct Doer;

  Simulator& sim_;
  Network& network_;
  BrokerAddress& broker_;
  Tally& tally_;
  const Options options_;
  Process process_;
  LeaseChannels channels_;

  // Of one life.
  std::string instance_, incarnation_;
  std::optional<engine::lease::Donor> donor_;
  std::optional<engine::lease::Borrower> borrower_;
  std::optional<StepLoop> loop_;
  std::deque<engine::lease::Lease> reports_;
  std::map<std::string, broker::ledger::LeaseLimit> limits_;
  int64_t registrations_ = 0;
  bool reporting_ = false, registering_ = false, quiet_ = false, leaving_ = false;
  int64_t stream_ = 0, last_request_ = 0;
  std::optional<LeaseId> last_fenced_;
  absl::Time continued_at_ = absl::InfinitePast();
  Micros planned_tick_ = 0, next_request_ = 0, next_need_ = 0;
};

}  // namespace swiftcache::sim
