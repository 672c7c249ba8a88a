// SPDX-License-Identifier: Apache-2.0
// The ids of the leases that ended most recently, so that a late copy of an old message does not start one again.
//
//   RecentIds ended(1024);
//   ended.Add(id);
//   if (ended.Contains(id)) ...
#pragma once

#include <cstddef>
#include <deque>
#include <set>

#include "engine/kv/lease_id.h"

namespace swiftcache::engine::lease {

/// Remembers the last `capacity` ids. Forgetting one is safe: a lease that is started again finds no peer.
/// Thread-safety: none. Ownership: a value. Errors: none.
class RecentIds {
 public:
  explicit RecentIds(size_t capacity) : capacity_(capacity) {}

  void Add(kv::LeaseId id) {
    if (!ids_.insert(id).second) return;
    order_.push_back(id);
    if (order_.size() <= capacity_) return;
    ids_.erase(order_.front());
    order_.pop_front();
  }
  bool Contains(kv::LeaseId id) const { return ids_.contains(id); }

 private:
  size_t capacity_;
  std::deque<kv::LeaseId> order_;
  std::set<kv::LeaseId> ids_;
};

}  // namespace swiftcache::engine::lease
