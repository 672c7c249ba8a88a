// SPDX-License-Identifier: Apache-2.0
// The broker's lease RPCs and its Watch, as the coordinator wants them.
//
//   auto leases = LeaseClient::Create({.broker = "127.0.0.1:50050", .instance_id = id, .identity = ..., events);
//   leases->RequestLease("1", 64 << 20, 4000);   // -> events.OnAnswer, then events.OnLease
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "engine/coordinator/lease_broker.h"

namespace swiftcache::engine::rpc {

/// Reports and questions go out one after the other, from a thread of its own; the advice on a scale-up, which is
/// wanted at once, overtakes them. A report that finds no broker waits until there is one. Thread-safety: safe.
/// Ownership: owns two threads and a connection; borrows the events. Errors: LeaseBroker's.
class LeaseClient : public coordinator::LeaseBroker {
 public:
  /// Who speaks: changes when the broker restarts, or when the name had to change.
  struct Identity {
    std::string name, incarnation;  // incarnation "": not registered now
  };
  struct Options {
    std::string broker;  // host:port
    std::string instance_id;
    std::function<Identity()> identity;  // called by the threads
    absl::Duration rpc_timeout = absl::Seconds(1);
    absl::Duration advice_timeout = absl::Milliseconds(3);
    absl::Duration retry_interval = absl::Milliseconds(300);  // while the broker is away
  };
  /// The broker has entered this engine, perhaps as a new one: it hears the last window again.
  virtual void Registered() = 0;
  static std::unique_ptr<LeaseClient> Create(const Options& options, coordinator::LeaseBrokerEvents& events);
};

}  // namespace swiftcache::engine::rpc
