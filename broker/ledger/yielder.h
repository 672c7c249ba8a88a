// SPDX-License-Identifier: Apache-2.0
// A borrower that may have to yield: which of its leases, and who comes first.
//
//   std::vector<Yielder> yielders;
//   while (Yielder* most = MostAbove(yielders, has_leases)) Take(most->Pop());
#pragma once

#include <cstdint>
#include <vector>

#include "broker/ledger/lease_table.h"

namespace swiftcache::broker::ledger {

/// Thread-safety: none. Ownership: borrows the leases. Units: as named.
class Yielder {
 public:
  /// `bytes` count against the borrower. Of `leases` the innermost is taken first. Where there are `offers` among them
  /// they are passed over: they are in their donor's use.
  Yielder(int64_t bytes, int64_t weight, const Places& leases, bool offers)
      : bytes_(bytes), weight_(weight), next_(leases.begin()), end_(leases.end()), offers_(offers) {
    PassOffers();
  }

  int64_t bytes() const { return bytes_; }
  bool has_leases() const { return next_ != end_; }
  /// REQUIRES: has leases, as all below.
  const Lease& next() const { return next_->second->lease; }
  /// Holds more bytes per weight; among equals, has the innermost lease.
  bool Above(const Yielder& other) const {
    const __int128 mine = static_cast<__int128>(bytes_) * other.weight_;
    const __int128 others = static_cast<__int128>(other.bytes_) * weight_;
    if (mine != others) return mine > others;
    return next_->first.first < other.next_->first.first;
  }
  const Lease& Pop() {
    const Lease& lease = next();
    bytes_ -= lease.num_bytes;
    ++next_;
    PassOffers();
    return lease;
  }

 private:
  void PassOffers() {
    while (offers_ && has_leases() && !next().epoch.has_value()) ++next_;
  }

  int64_t bytes_, weight_;
  Places::const_iterator next_, end_;
  bool offers_;
};

/// The yielder that is above all others among those for which `may(yielder)` is true; null: there is none. REQUIRES:
/// `may` is false for one without leases.
template <typename May>
Yielder* MostAbove(std::vector<Yielder>& yielders, const May& may) {
  Yielder* most = nullptr;
  for (Yielder& yielder : yielders) {
    if (may(yielder) && (most == nullptr || yielder.Above(*most))) most = &yielder;
  }
  return most;
}

}  // namespace swiftcache::broker::ledger
