// SPDX-License-Identifier: Apache-2.0
// The one thread that owns the broker's tables of engines and leases. The doors (gRPC handlers) call it from theirs and
// get responses through callbacks.
//
//   ASSIGN_OR_RETURN(auto loop, BrokerLoop::Create({.incarnation = "7f3a"}, clock, metrics));
//   loop->Heartbeat(caller, load, [](absl::Status status) { ... });
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "broker/ledger/ledger.h"
#include "broker/loop/lease_metrics.h"
#include "broker/loop/tables.h"
#include "broker/loop/watcher.h"
#include "broker/membership/membership.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "common/sync/mailbox.h"

namespace swiftcache::broker::loop {

struct Options {
  membership::Options membership = {};
  ledger::Options ledger = {};
  ledger::Ledger::NewCapability new_capability = {};  // 16 random bytes; called by the loop's thread
  absl::Duration lease_ttl = absl::Seconds(10);       // sent to engines when they register
  std::string incarnation = {};                       // of this process: random
  size_t queue_capacity = 4096;
  /// Of everything: gateways and operators, each of whom may leave a whole snapshot unread. Of engines as many watch as
  /// may register.
  size_t max_watchers = 256;
};

/// Thread-safety: safe. Ownership: owns the thread and the tables, shares the watchers; borrows clock and metrics.
/// Errors reach the callback: those of Tables, RESOURCE_EXHAUSTED (queue full), UNAVAILABLE (stopping). A callback runs
/// exactly once, on the loop's thread, or on the caller's when the queue refuses; it must not block.
class BrokerLoop {
 public:
  using Reply = std::function<void(absl::Status)>;
  using HeartbeatReply = std::function<void(absl::StatusOr<std::vector<ledger::BorrowerWeight>>)>;
  using RequestReply = std::function<void(absl::StatusOr<ledger::LeaseResponse>)>;
  using ScaleUpReply = std::function<void(absl::StatusOr<std::vector<ledger::LeaseId>>)>;
  /// `retry_after`: with ALREADY_EXISTS, when the holder of the name will have expired if it sends no heartbeat.
  using RegisterReply = std::function<void(absl::Status, std::optional<absl::Duration> retry_after)>;

  /// INVALID_ARGUMENT: an option out of range.
  static absl::StatusOr<std::unique_ptr<BrokerLoop>> Create(const Options& options, const Clock& clock,
                                                            Metrics& metrics);
  BrokerLoop(const Options& options, const Clock& clock, Metrics& metrics);
  ~BrokerLoop();

  const std::string& incarnation() const { return options_.incarnation; }
  absl::Duration heartbeat_interval() const { return options_.membership.heartbeat_interval; }

  absl::Duration lease_ttl() const { return options_.lease_ttl; }
  absl::Duration scale_down_window() const { return options_.ledger.elastic.window; }

  void Register(Tables::Registration registration, RegisterReply reply);
  void Heartbeat(Caller caller, membership::LoadReport load, HeartbeatReply reply);
  void Deregister(std::string name, std::string instance_id, Reply reply);

  // As in broker.proto; bodies in lease_handlers.cc. `reason` is for the log.
  void ReportWindow(Caller caller, elastic::Demand demand, Reply reply);
  void RequestLease(Caller caller, ledger::LeaseRequest request, RequestReply reply);
  void ScaleUp(Caller caller, int64_t need_blocks, ScaleUpReply reply);
  void ReportLease(Caller caller, ledger::Lease lease, std::string reason, Reply reply);
  void LimitLease(std::string model_name, std::optional<int64_t> max_borrowed_bytes, Reply reply);
  void RevokeLease(ledger::LeaseId lease, Reply reply);

  /// Sends the watcher a snapshot, then every change, in place of another of the same engine. Errors reach its Close.
  void Watch(std::shared_ptr<Watcher> watcher);
  void Unwatch(std::shared_ptr<Watcher> watcher);

  /// Refuses new messages, answers those in the queue, closes the watchers, joins.
  void Stop();

 private:
  using Message = std::function<void()>;  // the loop's thread calls it

  struct Counters {
    explicit Counters(Metrics& metrics);
    prometheus::Counter &registrations, &deaths, &heartbeats, &dropped_watchers;
    prometheus::Gauge& watchers;
    std::map<membership::EngineState, prometheus::Gauge*> engines;
  };

  /// `refuse`: called with a reason if the queue takes no message.
  template <typename Refuse>
  void Post(const Refuse& refuse, Message message) {
    if (!mailbox_.TryPush(std::move(message))) refuse(Refusal());
  }
  absl::Status Refusal() const;
  void Run();
  absl::Duration UntilNextDeadline();
  absl::Time Now();
  void PublishChanges();
  void Publish(const WatchEvent& event);
  absl::Status CheckRoomFor(const Watcher& watcher) const;
  void StartWatching(const std::shared_ptr<Watcher>& watcher);
  void PublishToEngine(const std::string& instance_id, const WatchEvent& event);
  /// False: the watcher is too slow and was closed.
  bool Tell(Watcher& watcher, const WatchEvent& event);
  void Forget(const membership::Removed& engine);
  void LogState(const membership::EngineInfo& info);
  void UpdateGauges();

  const Options options_;
  const Clock& clock_;
  Counters counters_;
  Mailbox<Message> mailbox_;

  // Owned by the loop thread.
  Tables tables_;
  LeaseMetrics lease_metrics_;
  absl::Time last_seen_, planned_wake_ = absl::InfinitePast();
  std::vector<std::shared_ptr<Watcher>> watchers_;              // of everything
  std::map<std::string, std::shared_ptr<Watcher>> of_engines_;  // by instance id
  std::map<std::string, membership::EngineState> logged_states_;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace swiftcache::broker::loop
