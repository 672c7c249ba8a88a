// SPDX-License-Identifier: Apache-2.0
// Small numbers for the engine instances that the ledger speaks of: it compares and finds by number, names are for the
// wire and for messages.
//
//   const PartyId chat = parties.Hold({"chat", "i1"});
//   parties.Drop(chat);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "broker/ledger/lease.h"

namespace swiftcache::broker::ledger {

/// Counts from 0, so that it can be an index. Its order is that in which parties became known.
using PartyId = StrongId<struct PartyIdTag, uint32_t>;

/// A party has its number while it is a member or a lease names it; then the number may become another's. Thread-safety:
/// none. Ownership: a value. Errors: none.
class Parties {
 public:
  /// The party's number, with one more use of it.
  PartyId Hold(const Party& party);
  /// One use less. REQUIRES: a call of Hold that gave `id`.
  void Drop(PartyId id);
  /// Those of one instance: more than one where it has changed its name.
  const std::vector<PartyId>& OfInstance(const std::string& instance_id) const;

 private:
  struct Entry {
    Party party;
    int64_t uses = 0;
  };

  absl::flat_hash_map<Party, PartyId> ids_;
  absl::flat_hash_map<std::string, std::vector<PartyId>> by_instance_;  // none is empty
  std::vector<Entry> entries_;                                          // by number
  std::vector<PartyId> unused_;                                         // the last is given next
};

}  // namespace swiftcache::broker::ledger
