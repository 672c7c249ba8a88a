// SPDX-License-Identifier: Apache-2.0
// What a donor has lent to the engines of each model, for how long, and why it ended: the ledger of worth, in bytes.
//
//   Accounts accounts;
//   accounts.Begin("chat", 4096, now);
//   accounts.End("chat", 4096, Ending::kNeed, /*fenced=*/false, now + absl::Seconds(2));
//   accounts.all().at("chat").byte_seconds() == 8192;
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "absl/numeric/int128.h"
#include "absl/time/time.h"
#include "engine/lease/ending.h"

namespace swiftcache::engine::lease {

/// What was lent to the engines of one model. Thread-safety: a value.
struct Account {
  struct Ended {
    int64_t released = 0, fenced = 0;  // fenced: without the borrower
    int64_t all() const { return released + fenced; }
    friend bool operator==(const Ended&, const Ended&) = default;
  };
  int64_t leases = 0;  // that were granted
  int64_t bytes = 0;   // on lease, when time was last counted
  absl::int128 byte_micros = 0;
  std::array<Ended, kEndings.size()> ended = {};

  Ended& of(Ending ending) { return ended[static_cast<size_t>(ending)]; }
  const Ended& of(Ending ending) const { return ended[static_cast<size_t>(ending)]; }
  /// Whole ones; what does not fit is the largest number.
  int64_t byte_seconds() const {
    return static_cast<int64_t>(std::min(byte_micros / 1'000'000, absl::int128(std::numeric_limits<int64_t>::max())));
  }
  friend bool operator==(const Account&, const Account&) = default;
};

/// Each lease counts once, at its donor, from the grant to the fence, by the donor's clock: what was lent and what was
/// borrowed are one number seen from its two ends. So they add up to the byte over any engines, whatever is lost between
/// them; what a borrower had in use is less, by the time that it took to open the lease and to hear of its end. Time is
/// counted in whole microseconds since 1970, at each change and when asked: whoever has a copy can ask it.
/// Thread-safety: none. Ownership: a value. Errors: none. REQUIRES of `now`: it does not go back.
class Accounts {
 public:
  void Begin(const std::string& model, int64_t bytes, absl::Time now);
  /// REQUIRES: a Begin of as many bytes.
  void End(const std::string& model, int64_t bytes, Ending ending, bool fenced, absl::Time now);
  /// Counts the time until now.
  void Advance(absl::Time now);
  /// By the borrowers' model, those of which nothing is lent any more included.
  const std::map<std::string, Account>& all() const { return accounts_; }
  /// The same, with the time until `now` counted.
  std::map<std::string, Account> At(absl::Time now) const;
  /// How many leases began or ended.
  int64_t changes() const { return changes_; }

 private:
  int64_t changes_ = 0;
  int64_t counted_until_ = 0;  // in microseconds
  std::map<std::string, Account> accounts_;
};

}  // namespace swiftcache::engine::lease
