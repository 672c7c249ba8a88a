// SPDX-License-Identifier: Apache-2.0
// The leases of one borrower that may be taken back, and the order in which borrowers have to give leases up.
//
//   std::map<Party, Holding> holdings;
//   const auto has_leases = [](const Holding& holding) { return !holding.leases.empty(); };
//   while (Holding* most = MostAbove(holdings, has_leases)) Take(most->Pop());
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>

#include "broker/ledger/lease.h"

namespace swiftcache::broker::ledger {

/// True where `a` lies further from the arena's end than `b`. Leases are taken back in this order, so that what stays
/// on lease is one run at the arena's end.
inline bool Innermost(const Lease* a, const Lease* b) { return a->extent.first_block < b->extent.first_block; }

/// Thread-safety: none. Ownership: borrows the leases. Units: as named.
struct Holding {
  int64_t bytes = 0;  // that count against the borrower
  int64_t weight = 1;
  std::deque<const Lease*> leases;  // innermost first

  /// Holds more bytes per weight; among equals, has the innermost lease. REQUIRES: both have leases.
  bool Above(const Holding& other) const {
    const __int128 mine = static_cast<__int128>(bytes) * other.weight;
    const __int128 others = static_cast<__int128>(other.bytes) * weight;
    return mine != others ? mine > others : Innermost(leases.front(), other.leases.front());
  }
  /// REQUIRES: has leases.
  const Lease& Pop() {
    const Lease& lease = *leases.front();
    leases.pop_front();
    bytes -= lease.num_bytes;
    return lease;
  }
};

/// The holding that is above all others among those for which `may(holding)` is true; null: there is none. REQUIRES:
/// `may` is false for a holding without leases.
template <typename May>
Holding* MostAbove(std::map<Party, Holding>& holdings, const May& may) {
  Holding* most = nullptr;
  for (auto& [party, holding] : holdings) {
    if (may(holding) && (most == nullptr || holding.Above(*most))) most = &holding;
  }
  return most;
}

}  // namespace swiftcache::broker::ledger
