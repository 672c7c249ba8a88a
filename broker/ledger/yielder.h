// SPDX-License-Identifier: Apache-2.0
// A borrower that may have to yield: which of its leases, and who comes first.
//
//   std::map<Party, Yielder> yielders;
//   while (Yielder* most = MostAbove(yielders, has_leases)) Take(most->Pop());
#pragma once

#include <cstdint>
#include <deque>
#include <map>

#include "broker/ledger/lease.h"

namespace swiftcache::broker::ledger {

/// Thread-safety: none. Ownership: borrows the leases. Units: as named.
struct Yielder {
  int64_t bytes = 0;  // that count against the borrower
  int64_t weight = 1;
  std::deque<const Lease*> leases;  // that may be taken, in this order

  /// Holds more bytes per weight; among equals, has the innermost lease. REQUIRES: both have leases.
  bool Above(const Yielder& other) const {
    const __int128 mine = static_cast<__int128>(bytes) * other.weight;
    const __int128 others = static_cast<__int128>(other.bytes) * weight;
    if (mine != others) return mine > others;
    return leases.front()->extent.first_block < other.leases.front()->extent.first_block;
  }
  /// REQUIRES: has leases.
  const Lease& Pop() {
    const Lease& lease = *leases.front();
    leases.pop_front();
    bytes -= lease.num_bytes;
    return lease;
  }
};

/// The yielder that is above all others among those for which `may(yielder)` is true; null: there is none. REQUIRES:
/// `may` is false for one without leases.
template <typename May>
Yielder* MostAbove(std::map<Party, Yielder>& yielders, const May& may) {
  Yielder* most = nullptr;
  for (auto& [party, yielder] : yielders) {
    if (may(yielder) && (most == nullptr || yielder.Above(*most))) most = &yielder;
  }
  return most;
}

}  // namespace swiftcache::broker::ledger
