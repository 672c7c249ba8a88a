// SPDX-License-Identifier: Apache-2.0
// The broker's lease RPCs and its Watch, behind the interface of the coordinator.
//
//   auto leases = LeaseClient::Create({.broker = "127.0.0.1:50050", .instance_id = id, .identity = identity}, events);
//   leases->RequestLease("1", 64 << 20, 4000);   // -> events.OnLeaseResponse, then events.OnLease
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "engine/coordinator/lease_broker.h"

namespace swiftcache::v1 {
class LeaseLimit;
}

namespace swiftcache::engine::rpc {

/// Reports and requests are sent one after the other, from a thread of its own; ScaleUp, whose response is needed at
/// once, overtakes them. A report is retried while the broker is away. Thread-safety: safe. Ownership: owns two threads
/// and a connection; borrows the events. Errors: LeaseBroker's.
class LeaseClient : public coordinator::LeaseBroker {
 public:
  /// The engine's identity: changes when the broker restarts, or when the name had to change.
  struct Identity {
    std::string name, incarnation;  // incarnation "": not registered now
  };
  struct Options {
    std::string broker;                                                        // host:port
    std::string instance_id, token;                                            // as BrokerClient's
    std::function<Identity()> identity;                                        // called by the threads, as are
    std::function<void(const v1::LeaseLimit&)> on_limit = [](const auto&) {};  // what Watch tells of limits
    std::function<void(const std::string&)> on_incarnation = [](const std::string&) {};  // and that a broker answered
    absl::Duration rpc_timeout = absl::Seconds(1);
    absl::Duration advice_timeout = absl::Milliseconds(3);
    absl::Duration retry_interval = absl::Milliseconds(300);  // while the broker is away
  };
  /// The broker has registered this engine, and may have no window of it: sends the last one again.
  virtual void Registered() = 0;
  static std::unique_ptr<LeaseClient> Create(const Options& options, coordinator::LeaseBrokerEvents& events);
};

}  // namespace swiftcache::engine::rpc
