// SPDX-License-Identifier: Apache-2.0
// The ids of what ended most recently, so that a late copy of an old message does not start it again.
//
//   RecentIds<LeaseId> ended(1024);
//   ended.Add(id);
//   if (ended.Contains(id)) ...
#pragma once

#include <cstddef>
#include <deque>
#include <set>

namespace swiftcache {

/// Remembers the last `capacity` ids; Id: copied and ordered. Thread-safety: none. Ownership: a value. Errors: none.
template <typename Id>
class RecentIds {
 public:
  explicit RecentIds(size_t capacity) : capacity_(capacity) {}

  void Add(const Id& id) {
    if (!ids_.insert(id).second) return;
    order_.push_back(id);
    if (order_.size() <= capacity_) return;
    ids_.erase(order_.front());
    order_.pop_front();
  }
  bool Contains(const Id& id) const { return ids_.contains(id); }

 private:
  size_t capacity_;
  std::deque<Id> order_;
  std::set<Id> ids_;
};

}  // namespace swiftcache
