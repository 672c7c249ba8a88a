// SPDX-License-Identifier: Apache-2.0
// The leases of one borrower that may be taken back, for choosing among borrowers.
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

/// True where `a` lies further in than `b`: leases are given back from there.
inline bool Innermost(const Lease* a, const Lease* b) { return a->extent.first_block < b->extent.first_block; }

/// Thread-safety: none. Ownership: borrows the leases. Units: as named.
struct Holding {
  int64_t bytes = 0;  // that count against the borrower
  int64_t weight = 1;
  std::deque<const Lease*> leases;  // innermost first

  /// Has more for its weight; where both have alike, reaches further in. REQUIRES: both have leases.
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

/// The holding that is above all others among those for which `may(holding)`; null: there is none. REQUIRES: `may` asks
/// for leases.
template <typename May>
Holding* MostAbove(std::map<Party, Holding>& holdings, const May& may) {
  Holding* most = nullptr;
  for (auto& [party, holding] : holdings) {
    if (may(holding) && (most == nullptr || holding.Above(*most))) most = &holding;
  }
  return most;
}

}  // namespace swiftcache::broker::ledger
