// SPDX-License-Identifier: Apache-2.0
// The leases that own blocks may lie in, as the step loop knows them.
//
//   regions.Add({.lease = message.id, .region = region, .donor = message.donor, .view = message.view});
//   if (LeasedRegion* region = regions.Find(message.id)) ...
//   for (auto& [id, region] : regions) ...
//   regions.Remove(id);
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "engine/kv/tiers.h"
#include "engine/lease/departure.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::exec {

/// A lease that blocks may lie in.
struct LeasedRegion {
  kv::LeaseId lease;
  kv::RegionId region;
  std::string donor;
  transport::LeaseView view;
  lease::Departure departure;
  absl::Time last_use;               // at the latest look (LeaseUse) that saw one
  bool has_more_to_move = true;      // false: what had somewhere to go has gone, or goes
  int64_t resets = 0;                // of sequences, for what it took along
  std::optional<int64_t> told_heat;  // to its donor
};

/// Thread-safety: none; the step loop owns it. Ownership: a value; a reference to a region is good until it is removed.
/// Errors: none; what is asked for by region is there.
class LeasedRegions {
 public:
  using Map = std::map<kv::RegionId, LeasedRegion>;

  void Add(LeasedRegion region) {
    region_of_[region.lease] = region.region;
    const kv::RegionId id = region.region;
    regions_.emplace(id, std::move(region));
  }
  void Remove(kv::RegionId region) {
    const auto it = regions_.find(region);
    region_of_.erase(it->second.lease);
    regions_.erase(it);
  }

  /// nullptr: it is gone, or never came.
  LeasedRegion* Find(kv::LeaseId lease) {
    const auto it = region_of_.find(lease);
    return it == region_of_.end() ? nullptr : &regions_.at(it->second);
  }
  LeasedRegion& at(kv::RegionId region) { return regions_.at(region); }
  const LeasedRegion& at(kv::RegionId region) const { return regions_.at(region); }
  /// The one after `region` in the order of numbers, and after the last the first. REQUIRES: there are any.
  LeasedRegion& NextInTurn(kv::RegionId region) {
    const auto next = regions_.upper_bound(region);
    return next == regions_.end() ? regions_.begin()->second : next->second;
  }

  bool empty() const { return regions_.empty(); }
  int64_t size() const { return static_cast<int64_t>(regions_.size()); }
  Map::iterator begin() { return regions_.begin(); }
  Map::iterator end() { return regions_.end(); }
  Map::const_iterator begin() const { return regions_.begin(); }
  Map::const_iterator end() const { return regions_.end(); }

 private:
  Map regions_;
  absl::flat_hash_map<kv::LeaseId, kv::RegionId> region_of_;
};

}  // namespace swiftcache::engine::exec
