// SPDX-License-Identifier: Apache-2.0
// A receiver of the broker's tables: first a snapshot, then every change; or, if it is an engine, of its own leases.
//
//   class Printer final : public Watcher { ... };
//   loop.Watch(std::make_shared<Printer>());
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "broker/ledger/lease.h"
#include "broker/membership/membership.h"

namespace swiftcache::broker::loop {

struct WatchEvent {
  struct Snapshot {
    std::vector<membership::EngineStatus> engines;
    std::vector<ledger::Lease> leases;       // those that have not ended
    std::vector<ledger::LeaseLimit> limits;  // with those that were lifted
  };
  std::string incarnation;
  std::variant<Snapshot, membership::EngineStatus, membership::Removed, ledger::Lease, ledger::LeaseLimit> what;
  int64_t number = 0;  // of the change, from 1 on; of a snapshot, that of the last change in it
};

/// Thread-safety: called by the loop alone, one call at a time; must not block. Ownership: shared between loop and
/// door, since either may end first.
class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual const std::string& name() const = 0;  // for the log
  /// Of the engine that watches: it hears of the leases that it gives and takes, and of limits, until it watches once
  /// more. "": hears of everything.
  virtual const std::string& instance_id() const = 0;
  /// False: no room, the reader is too slow. The loop then calls Close and forgets it.
  virtual bool Offer(const WatchEvent& event) = 0;
  /// Last call: RESOURCE_EXHAUSTED (too slow, or there are too many), ABORTED (its engine watches anew) or UNAVAILABLE
  /// (the broker stops).
  virtual void Close(absl::Status why) = 0;
};

}  // namespace swiftcache::broker::loop
