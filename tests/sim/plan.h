// SPDX-License-Identifier: Apache-2.0
// What a run of the simulation is asked to do, and what happened in it.
#pragma once

#include <cstdint>

namespace swiftcache::sim {

/// Bugs that a run may be given, to show that it would notice them. They live here and nowhere in the product.
enum class PlantedBug {
  kNone,
  kNoGenerationCheck,   // a reader believes whatever it read
  kOnlyFirstCheck,      // a reader does not look again after its last read
  kMovesUnchecked,      // a drain believes whatever it moved
  kReleaseBeforeDrain,  // a borrower gives back what its loop still uses
  kLeaseTwice,          // broker, donor and kv all forget that an extent is on lease
  kBrokerLeasesTwice,   // the broker alone does; donor and kv hold the line
  kMiscountsLent,       // a loop says that more is lent than is
  kLateCoordinator,     // a coordinator does not get its core in time
  kBelieveTheBroker,    // a borrower takes the broker's word, of any incarnation, for the end of a lease
};

/// Which faults a run has.
enum class Faults {
  kAll,
  kBrokerAway,  // as kBrokerOnly, but it dies once, for long, and one engine finds its successor four seconds late
  kBrokerOnly,  // it dies, or is replaced, and all find the new one before the next; steps are short, nobody wants
                // memory back, messages come once and soon
};

/// What happened, added up over runs: a simulation in which nothing happens proves nothing.
struct Tally {
  int64_t runs = 0, events = 0;
  int64_t grants = 0, released = 0, fenced = 0, declined = 0, lost_in_use = 0, unread = 0, renewals = 0;
  int64_t stores = 0, refused_stores = 0, remote_reads = 0, remote_reads_failed = 0, local_reads = 0, moved_back = 0;
  int64_t engine_crashes = 0, broker_restarts = 0, broker_replacements = 0, broker_stops = 0, departures = 0, stops = 0,
          hangs = 0, cuts = 0;
  int64_t own_needs = 0, answered_needs = 0, agreed_leases = 0, stray_messages = 0;
  int64_t kept_leases = 0, reads_meanwhile = 0;  // while a broker was away
  int64_t kept_of_cut_off = 0;                   // leases of the engine that its successor did not see, until it did
};

}  // namespace swiftcache::sim
