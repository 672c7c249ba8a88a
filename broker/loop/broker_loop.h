// SPDX-License-Identifier: Apache-2.0
// The one thread that owns the broker's table. Doors send it plain messages and get answers through callbacks.
//
//   ASSIGN_OR_RETURN(auto loop, BrokerLoop::Create({.incarnation = "7f3a"}, clock, metrics));
//   loop->Heartbeat(name, instance_id, incarnation, load, [](absl::Status status) { ... });
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "broker/loop/watcher.h"
#include "broker/membership/membership.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "common/sync/bounded_queue.h"

namespace swiftcache::broker::loop {

struct Options {
  membership::Options membership = {};
  std::string incarnation = {};  // of this process: random
  size_t queue_capacity = 4096;
};

/// Thread-safety: safe. Ownership: owns the thread and the table, shares the watchers; borrows clock and metrics.
/// Errors: reach the callback: those of Membership, RESOURCE_EXHAUSTED (queue full), UNAVAILABLE (stopping). Callbacks
/// run on the loop's thread, or on the caller's when the queue refuses, exactly once; they must not block.
class BrokerLoop {
 public:
  using Reply = std::function<void(absl::Status)>;
  /// `retry_after`: with ALREADY_EXISTS, how long the holder of the name has to live unless it speaks.
  using RegisterReply = std::function<void(absl::Status, std::optional<absl::Duration> retry_after)>;

  /// INVALID_ARGUMENT: an option out of range.
  static absl::StatusOr<std::unique_ptr<BrokerLoop>> Create(const Options& options, const Clock& clock,
                                                            Metrics& metrics);
  BrokerLoop(const Options& options, const Clock& clock, Metrics& metrics);
  ~BrokerLoop();

  const std::string& incarnation() const { return options_.incarnation; }
  absl::Duration heartbeat_interval() const { return options_.membership.heartbeat_interval; }

  void Register(membership::EngineInfo info, RegisterReply reply);
  /// NOT_FOUND also for another incarnation than this one's.
  void Heartbeat(std::string name, std::string instance_id, std::string incarnation, membership::EngineLoad load,
                 Reply reply);
  void Deregister(std::string name, std::string instance_id, Reply reply);

  /// Sends the watcher a snapshot, then every change. UNAVAILABLE or RESOURCE_EXHAUSTED reach its Close.
  void Watch(std::shared_ptr<Watcher> watcher);
  void Unwatch(std::shared_ptr<Watcher> watcher);

  /// Refuses new messages, answers those inside, closes the watchers, joins.
  void Stop();

 private:
  struct RegisterMessage {
    membership::EngineInfo info;
    RegisterReply reply;
  };
  struct HeartbeatMessage {
    std::string name, instance_id, incarnation;
    membership::EngineLoad load;
    Reply reply;
  };
  struct DeregisterMessage {
    std::string name, instance_id;
    Reply reply;
  };
  struct WatchMessage {
    std::shared_ptr<Watcher> watcher;
  };
  struct UnwatchMessage {
    std::shared_ptr<Watcher> watcher;
  };
  using Message = std::variant<RegisterMessage, HeartbeatMessage, DeregisterMessage, WatchMessage, UnwatchMessage>;

  struct Counters {
    explicit Counters(Metrics& metrics);
    prometheus::Counter &registrations, &deaths, &heartbeats, &dropped_watchers;
    prometheus::Gauge& watchers;
    std::map<membership::EngineState, prometheus::Gauge*> engines;
  };

  absl::Status Refusal() const;
  void Run();
  absl::Duration UntilNextDeath();
  absl::Time Now();
  void Handle(RegisterMessage& message);
  void Handle(HeartbeatMessage& message);
  void Handle(DeregisterMessage& message);
  void Handle(WatchMessage& message);
  void Handle(UnwatchMessage& message);
  void PublishChanges();
  void Publish(const membership::Change& change);
  void LogChange(const membership::Change& change);
  void UpdateGauges();

  const Options options_;
  const Clock& clock_;
  Counters counters_;
  BoundedQueue<Message> queue_;

  // Owned by the loop thread.
  membership::Membership table_;
  absl::Time last_seen_, planned_wake_ = absl::InfinitePast();
  int64_t version_ = 0;
  std::vector<std::shared_ptr<Watcher>> watchers_;
  std::map<std::string, membership::EngineState> logged_states_;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace swiftcache::broker::loop
