// SPDX-License-Identifier: Apache-2.0
// What engine/rpc's BrokerClient and LeaseClient do for an engine, over the simulated network: it registers, beats,
// watches, and makes the coordinator's calls. In which order, and which again, is the product's own BrokerCalls; the rest
// is made for the simulation. What depends on gRPC and on threads is proved by tests/engine/rpc and tests of processes.
//
//   SimBrokerClient client(sim, network, address, process, tally, {.endpoint = 1});
//   client.Start(info, coordinator);
//   coordinator.Attach(&channels, &client, push);
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "broker/membership/membership.h"
#include "engine/coordinator/broker_calls.h"
#include "engine/coordinator/coordinator.h"
#include "engine/coordinator/lease_broker.h"
#include "tests/sim/blindfold.h"
#include "tests/sim/sim_broker.h"

namespace swiftcache::sim {

inline constexpr Micros kRpcTimeout = 100'000;
inline constexpr absl::Duration kTtl = absl::Milliseconds(600), kAdvicePatience = absl::Milliseconds(3);
inline constexpr absl::Duration kWindow = absl::Milliseconds(300);

/// Who answers on the broker's address now.
struct BrokerAddress {
  SimBroker* broker = nullptr;
};

/// Thread-safety: none. Ownership: borrows all that it is given.
class SimBrokerClient final : public engine::coordinator::LeaseBroker {
 public:
  struct Options {
    int endpoint = 1;
    PlantedBug bug = PlantedBug::kNone;
    Blindfold blindfold;
  };
  SimBrokerClient(Simulator& sim, Network& network, BrokerAddress& broker, Process& process, Tally& tally,
                  const Options& options)
      : sim_(sim), network_(network), broker_(broker), process_(process), tally_(tally), options_(options) {}

  /// A new life.
  void Start(const broker::membership::EngineInfo& info, engine::coordinator::Coordinator& coordinator);
  void SignOff();
  /// Its watch stream broke; it notices after a while.
  void WatchBroke();

  void RequestLease(const engine::coordinator::LeaseRequest& request) override { Push(request); }
  void RequestScaleUp(int64_t question, int64_t need_blocks) override;
  void Report(const engine::coordinator::LeaseEvent& news) override;
  void ReportWindow(const engine::coordinator::Window& window) override { Push(window); }

  /// Reports that nobody has answered.
  int64_t num_reports() const;

 private:
  using Serve = std::function<std::function<void()>(SimBroker&)>;

  /// Calls whoever has the broker's address when it arrives; where nobody has, it fails at once, as a refused
  /// connection does.
  void Call(Serve serve, std::function<void()> on_timeout, Micros timeout = kRpcTimeout, bool may_repeat = true);
  broker::loop::Caller caller() const { return {info_.name, info_.instance_id, incarnation_}; }

  void Register();
  void Registered(const std::string& incarnation);
  void OpenWatch();
  void Hear(const WatchWord& word, int64_t stream);
  void KeepBeating();

  void Push(engine::coordinator::BrokerCall call);
  void SendNext();
  void SendAgain();
  void Send(const engine::coordinator::LeaseEvent& news);
  void Send(const engine::coordinator::LeaseRequest& request);
  void Send(const engine::coordinator::Window& window);
  void Answered(const absl::Status& status);

  Simulator& sim_;
  Network& network_;
  BrokerAddress& broker_;
  Process& process_;
  Tally& tally_;
  const Options options_;

  // Of one life.
  engine::coordinator::Coordinator* coordinator_ = nullptr;
  broker::membership::EngineInfo info_;
  std::string incarnation_;  // "": not registered
  std::map<std::string, broker::ledger::LeaseLimit> limits_;
  std::map<std::string, int64_t> weights_;  // as told last
  int64_t registrations_ = 0, stream_ = 0;
  bool registering_ = false;
  engine::coordinator::BrokerCalls calls_;
  std::optional<engine::coordinator::BrokerCall> sent_;  // and not answered
};

}  // namespace swiftcache::sim
