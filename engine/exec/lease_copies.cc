// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/lease_copies.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "common/log/log.h"

namespace swiftcache::engine::exec {

using kv::Move;

namespace {

constexpr int64_t kFetchBytes = 4 * kMiB;  // of a fetch: a drain, and the first layer's load, wait for it

}  // namespace

backend::DeviceAddress LeaseCopies::Address(kv::Place place) const {
  if (place.local()) return parts_.own->At(place.index);
  return parts_.regions->at(place.region).view.base + place.index * parts_.own->block_bytes();
}

void LeaseCopies::StartWished() {
  const int64_t stores = std::max<int64_t>(0, kMaxStores - static_cast<int64_t>(stores_.size()));
  Start(parts_.cache->TakeMoves(stores, std::max<int64_t>(1, kFetchBytes / parts_.own->block_bytes())));
}

// What comes home is read by the next step there, by this one where it was: the copy and the step do not disturb each
// other, since neither place is written.
void LeaseCopies::Start(const std::vector<Move>& moves) {
  const int64_t bytes = parts_.own->block_bytes();
  std::vector<transport::LoadPiece> loads;
  std::vector<transport::StorePiece> stores;
  std::vector<Move> home, away;
  for (const Move& move : moves) {
    CHECK(!move.from.local() || !move.to.local()) << "block " << move.id << " moves by other means than a transport";
    if (move.to.local()) {
      loads.push_back({parts_.regions->at(move.from.region).lease, move.from.index * bytes, bytes, Address(move.to)});
      home.push_back(move);
    } else {
      stores.push_back({parts_.regions->at(move.to.region).lease, move.to.index * bytes, Address(move.from), bytes});
      away.push_back(move);
    }
  }
  const backend::Fence& after = parts_.own->last_change();
  if (!loads.empty()) fetches_.push_back({parts_.transport->Load(std::move(loads), after), std::move(home)});
  if (stores.empty()) return;
  const std::vector<transport::Ticket> tickets = parts_.transport->Store(stores, after);
  const absl::Time now = parts_.clock->Now();
  for (size_t i = 0; i < away.size(); ++i) {
    stores_.emplace(tickets[i], Store{away[i], now});
    stores_from_leases_ += away[i].from.local() ? 0 : 1;
  }
  longest_wait_since_ = std::min(longest_wait_since_, now);
}

std::vector<kv::LeaseId> LeaseCopies::FinishFetches() {
  std::vector<kv::LeaseId> lost_of_any;
  for (const Fetch& fetch : std::exchange(fetches_, {})) {
    const std::vector<kv::LeaseId> lost = parts_.transport->Await(fetch.load);
    lost_of_any.insert(lost_of_any.end(), lost.begin(), lost.end());
    for (const Move& move : fetch.moves) {
      if (std::find(lost.begin(), lost.end(), parts_.regions->at(move.from.region).lease) == lost.end()) {
        parts_.cache->FinishMove(move);
      } else {
        parts_.cache->AbortMove(move);
      }
    }
  }
  return lost_of_any;
}

void LeaseCopies::Ended(transport::Ticket store, const absl::Status& status) {
  const auto it = stores_.find(store);
  if (it == stores_.end()) return;
  const Move move = it->second.move;
  stores_.erase(it);
  stores_from_leases_ -= move.from.local() ? 0 : 1;
  const LeasedRegion& to = parts_.regions->at(move.to.region);
  if (status.ok()) RestartTimeouts(to.donor);
  NoteLongestWait();
  const bool good = status.ok() && (move.from.local() || parts_.regions->at(move.from.region).view.Holds());
  if (good) {
    parts_.cache->FinishMove(move);
    return;
  }
  parts_.cache->AbortMove(move);
  // The donor refuses: whatever becomes of the lease, nothing more goes there.
  if (!status.ok() && (to.departure.in_use() || to.departure.waiting())) {
    parts_.cache->RegionDraining(to.region);
    parts_.coordinator->StoreFailed(to.lease, status);
  }
}

void LeaseCopies::RestartTimeouts(const std::string& donor) {
  const absl::Time now = parts_.clock->Now();
  for (auto& [ticket, store] : stores_) {
    if (parts_.regions->at(store.move.to.region).donor == donor) store.waits_since = now;
  }
}

bool LeaseCopies::LeaveSilentDonors() {
  const absl::Time now = parts_.clock->Now();
  bool left = false;
  if (now < silent_at()) return false;
  for (auto& [ticket, store] : stores_) {
    if (now - store.waits_since < kStorePatience) continue;
    store.waits_since = absl::InfiniteFuture();  // said once
    parts_.coordinator->DonorSilent(parts_.regions->at(store.move.to.region).lease);
    left = true;
  }
  if (left) NoteLongestWait();
  return left;
}

absl::Time LeaseCopies::LongestWaitSince() const {
  absl::Time since = absl::InfiniteFuture();
  for (const auto& [ticket, store] : stores_) since = std::min(since, store.waits_since);
  return since;
}

absl::flat_hash_set<kv::LeaseId> LeaseCopies::LeasesRead() const {
  absl::flat_hash_set<kv::LeaseId> read;
  for (const Fetch& fetch : fetches_) {
    for (const Move& move : fetch.moves) read.insert(parts_.regions->at(move.from.region).lease);
  }
  for (const auto& [ticket, store] : stores_) {
    if (!store.move.from.local()) read.insert(parts_.regions->at(store.move.from.region).lease);
  }
  return read;
}

absl::Status LeaseCopies::CheckInvariants() const {
  const int64_t from_leases =
      std::count_if(stores_.begin(), stores_.end(), [](const auto& store) { return !store.second.move.from.local(); });
  if (from_leases != stores_from_leases_) {
    return absl::InternalError(absl::StrCat(from_leases, " stores come from leases, counted ", stores_from_leases_));
  }
  if (LongestWaitSince() != longest_wait_since_) {
    return absl::InternalError(absl::StrCat("a store waits since ", absl::FormatTime(LongestWaitSince()), ", noted ",
                                            absl::FormatTime(longest_wait_since_)));
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::exec
