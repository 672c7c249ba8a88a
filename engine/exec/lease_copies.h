// SPDX-License-Identifier: Apache-2.0
// Copies under way between own memory and leases, and from lease to lease: what the cache decided to move, the transport
// moves, and the cache hears how it ended.
//
//   copies.Start(cache.PlanDrain(region, 8));
//   for (kv::LeaseId lost : copies.FinishFetches()) ...   // before each plan
//   copies.Ended(stored_message.ticket, stored_message.status);
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/backend/device_address.h"
#include "engine/coordinator/loop_events.h"
#include "engine/exec/leased_regions.h"
#include "engine/exec/own_memory.h"
#include "engine/kv/tiers.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::exec {

/// A fetch brings blocks home and is waited for; a store sends them into a lease, and its donor says when it has ended.
///
/// Thread-safety: none; the step loop owns it. Ownership: borrows everything handed in. Errors: none: a copy that fails
/// is a block that stays where it was.
class LeaseCopies {
 public:
  struct Dependencies {
    LeasedRegions* regions;
    OwnMemory* own;
    kv::Tiers* cache;
    transport::Transport* transport;
    coordinator::LoopEvents* coordinator;
    const Clock* clock;
  };
  /// `revoke_deadline`: of donors.
  LeaseCopies(absl::Duration revoke_deadline, const Dependencies& parts)
      : revoke_deadline_(revoke_deadline), parts_(parts) {}

  void Start(const std::vector<kv::Move>& moves);
  /// What the cache would like to move, as far as the transport has room for it.
  void StartWished();
  /// Waits for the fetches under way. Returns the leases that were lost meanwhile; what was to come from them did not.
  [[nodiscard]] std::vector<kv::LeaseId> FinishFetches();
  void Ended(transport::Ticket store, const absl::Status& status);

  /// True: donors that accept no stores were given up just now, and their leases are to be drained before anything else.
  bool LeaveSilentDonors();
  /// When a donor is silent for too long.
  absl::Time silent_at() const { return longest_wait_since_ + kStorePatience; }

  bool MayStore() const { return static_cast<int64_t>(stores_.size()) < kMaxStores; }
  /// False: a donor takes its time over a store, and what is sent to it now would not be there in time.
  bool StoresFlow() const { return parts_.clock->Now() - longest_wait_since_ <= revoke_deadline_ / kStuckDivisor; }
  /// Blocks on their way from leases to leases.
  int64_t num_stores_from_leases() const { return stores_from_leases_; }
  /// Leases that copies under way read.
  absl::flat_hash_set<kv::LeaseId> LeasesRead() const;
  /// INTERNAL says what does not add up.
  absl::Status CheckInvariants() const;

 private:
  struct Store {
    kv::Move move;
    absl::Time waits_since;  // for its donor: its last word, if that was later than the store
  };
  struct Fetch {
    transport::Ticket load;
    std::vector<kv::Move> moves;  // to the own arena
  };

  // Where the bytes of a place are. Those of a lease must not be written: a block there is full and committed.
  backend::DeviceAddress Address(kv::Place place) const;
  void RestartTimeouts(const std::string& donor);
  void NoteLongestWait() { longest_wait_since_ = LongestWaitSince(); }
  absl::Time LongestWaitSince() const;

  static constexpr int64_t kMaxStores = 64;  // under way: enough to keep the transport busy
  static constexpr absl::Duration kStorePatience =
      absl::Seconds(1);  // with a donor behind whose stores all others wait
  // Who waits for a store for this part of a revocation's time sends no more there.
  static constexpr int kStuckDivisor = 4;
  const absl::Duration revoke_deadline_;
  const Dependencies parts_;
  std::map<transport::Ticket, Store> stores_;
  // Of stores_; asked for every lease on its way out, whenever one leaves.
  int64_t stores_from_leases_ = 0;
  absl::Time longest_wait_since_ = absl::InfiniteFuture();
  std::vector<Fetch> fetches_;
};

}  // namespace swiftcache::engine::exec
