// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/extent_set.h"

#include <algorithm>
#include <iterator>

#include "glog/logging.h"

namespace swiftcache::engine::kv {

ExtentSet::ExtentSet(int64_t count) : size_(count) {
  if (count > 0) extents_.emplace(0, static_cast<int32_t>(count));
}

// The run that `index` lies in, or the end.
ExtentSet::Extents::const_iterator ExtentSet::Holding(int32_t index) const {
  const auto above = extents_.upper_bound(index);
  if (above == extents_.begin()) return extents_.end();
  const auto run = std::prev(above);
  return index - run->first < run->second ? run : extents_.end();
}

bool ExtentSet::Covers(int32_t first, int32_t count) const {
  const auto run = Holding(first);
  return run != extents_.end() && run->second - (first - run->first) >= count;
}

int64_t ExtentSet::CountBelow(int32_t end) const {
  int64_t count = 0;
  for (auto run = extents_.begin(); run != extents_.end() && run->first < end; ++run) {
    count += std::min(run->second, end - run->first);
  }
  return count;
}

std::vector<int32_t> ExtentSet::Take(int64_t count, std::optional<int32_t> after) {
  CHECK_LE(count, size_);
  std::vector<int32_t> taken;
  taken.reserve(count);
  if (after) {
    const auto next = extents_.find(*after + 1);
    if (next != extents_.end()) TakeFrom(next, std::min<int64_t>(count, next->second), taken);
  }
  while (static_cast<int64_t>(taken.size()) < count) {
    const int64_t rest = count - static_cast<int64_t>(taken.size());
    const auto extent = FirstOfLength(rest);
    TakeFrom(extent, std::min<int64_t>(rest, extent->second), taken);
  }
  return taken;
}

// The lowest extent of at least `count` places, else the lowest of all.
ExtentSet::Extents::iterator ExtentSet::FirstOfLength(int64_t count) {
  const auto found = std::find_if(extents_.begin(), extents_.end(), [count](auto& e) { return e.second >= count; });
  return found != extents_.end() ? found : extents_.begin();
}

void ExtentSet::TakeFrom(Extents::iterator extent, int64_t count, std::vector<int32_t>& taken) {
  const auto [start, length] = *extent;
  for (int64_t i = 0; i < count; ++i) taken.push_back(static_cast<int32_t>(start + i));
  const auto behind = extents_.erase(extent);
  if (count < length) extents_.emplace_hint(behind, start + count, length - count);
  size_ -= count;
}

void ExtentSet::Insert(int32_t first, int32_t count) {
  auto next = extents_.lower_bound(first);
  CHECK(next == extents_.end() || next->first - first >= count) << "place " << next->first << " is in the set already";
  int32_t start = first, length = count;
  if (next != extents_.end() && next->first - first == count) {
    length += next->second;
    next = extents_.erase(next);
  }
  if (next != extents_.begin()) {
    const auto before = std::prev(next);
    CHECK_LE(before->second, first - before->first) << "place " << first << " is in the set already";
    if (before->second == first - before->first) {
      start = before->first;
      length += before->second;
      extents_.erase(before);
    }
  }
  extents_.emplace(start, length);
  size_ += count;
}

void ExtentSet::Remove(int32_t first, int32_t count) {
  CHECK(Covers(first, count)) << "places " << first << " to " << first + count - 1 << " are not all in the set";
  const auto run = Holding(first);
  const auto [start, length] = *run;
  auto behind = extents_.erase(run);
  if (first + count < start + length)
    behind = extents_.emplace_hint(behind, first + count, start + length - first - count);
  if (start < first) extents_.emplace_hint(behind, start, first - start);
  size_ -= count;
}

// The runs inside go; then the ends that stick out are all that is left there.
void ExtentSet::Unite(int32_t first, int32_t count) {
  int32_t start = first, end = first + count;
  auto run = Holding(first);
  if (run == extents_.end()) run = extents_.lower_bound(first);
  while (run != extents_.end() && run->first < end) {
    start = std::min(start, run->first);
    end = std::max(end, run->first + run->second);
    size_ -= run->second;
    run = extents_.erase(run);
  }
  Insert(start, end - start);
}

}  // namespace swiftcache::engine::kv
