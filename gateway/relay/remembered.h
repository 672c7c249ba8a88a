// SPDX-License-Identifier: Apache-2.0
// What is kept of things that come and go, by name: of all that were seen at the last look, and of the last that were
// not.
//
//   Remembered<std::string, Metrics> models;
//   std::shared_ptr<Metrics> model = models.Get(name, [&] { return metrics.Part({{"model_name", name}}); });
//   models.See(name, now);
//   models.Forget(now);
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "absl/time/time.h"

namespace swiftcache::gateway::relay {

/// Thread-safety: none. Ownership: shared with who uses a value that is forgotten meanwhile. Errors: none.
template <typename Key, typename T>
class Remembered {
 public:
  /// That were not seen at the last look.
  static constexpr size_t kMaxUnseen = 256;
  /// In all, whether somebody looks or not: twice the engines of the largest cluster.
  static constexpr size_t kMost = 8192;
  static constexpr absl::Duration kTime = absl::Hours(24);  // unseen: somebody has seen the alert by then

  /// Makes it with `make` where there is none; then, if there are too many, the one unseen for the longest goes.
  template <typename Make>
  std::shared_ptr<T> Get(const Key& key, const Make& make) {
    auto entry = entries_.find(key);
    if (entry == entries_.end()) {
      if (entries_.size() >= kMost) entries_.erase(std::ranges::min_element(entries_, {}, LastOf));
      entry = entries_.emplace(key, Entry{make(), absl::InfinitePast()}).first;
    }
    return entry->second.value;
  }
  /// It is there at `now`. REQUIRES: Get has made it since the last Forget.
  void See(const Key& key, absl::Time now) {
    absl::Time& last = entries_.at(key).last;
    last = std::max(last, now);
  }
  /// At `now` all that are there have been seen: of the others those go that were not seen for kTime, and those unseen
  /// for the longest beyond kMaxUnseen. What was made since the last time counts as seen.
  void Forget(absl::Time now) {
    std::vector<typename Entries::iterator> unseen;
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      absl::Time& last = entry->second.last;
      if (last == absl::InfinitePast()) last = now;
      if (last < now) unseen.push_back(entry);
    }
    std::ranges::sort(unseen, {}, [](const auto& entry) { return entry->second.last; });
    size_t left = unseen.size();
    for (const auto& entry : unseen) {
      if (left-- <= kMaxUnseen && now - entry->second.last <= kTime) break;
      entries_.erase(entry);
    }
  }
  template <typename Do>
  void ForEach(const Do& act) const {
    for (const auto& [key, entry] : entries_) act(key, *entry.value);
  }

 private:
  struct Entry {
    std::shared_ptr<T> value;
    absl::Time last;  // seen; infinite past: made since the last Forget
  };
  using Entries = std::map<Key, Entry>;
  static absl::Time LastOf(const typename Entries::value_type& entry) {
    return entry.second.last == absl::InfinitePast() ? absl::InfiniteFuture() : entry.second.last;
  }

  Entries entries_;
};

}  // namespace swiftcache::gateway::relay
