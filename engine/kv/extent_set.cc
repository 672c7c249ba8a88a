// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/extent_set.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "glog/logging.h"

namespace swiftcache::engine::kv {

ExtentSet::ExtentSet(int64_t count) : size_(count) {
  if (count > 0) Add(0, static_cast<int32_t>(count));
}

ExtentSet::Extents::iterator ExtentSet::Add(int32_t first, int32_t length) {
  NoteLength(first, length);
  return extents_.emplace(first, length).first;
}

ExtentSet::Extents::iterator ExtentSet::Erase(Extents::const_iterator run) {
  NoteLength(run->first, 0);
  return extents_.erase(run);
}

// Twice as many places are looked after where one lies beyond: as often as the set doubles.
void ExtentSet::NoteLength(int32_t first, int32_t length) {
  if (size_t places = longest_.size() / 2; static_cast<size_t>(first) >= places) {
    places = std::bit_ceil(static_cast<size_t>(first) + 1);
    longest_.assign(2 * places, 0);
    for (const auto& [start, known] : extents_) longest_[places + start] = known;
    for (size_t i = places - 1; i > 0; --i) longest_[i] = std::max(longest_[2 * i], longest_[2 * i + 1]);
  }
  size_t i = longest_.size() / 2 + first;
  longest_[i] = length;
  while (i > 1) {
    i /= 2;
    const int32_t longest = std::max(longest_[2 * i], longest_[2 * i + 1]);
    if (longest_[i] == longest) return;
    longest_[i] = longest;
  }
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

int64_t ExtentSet::CountWithin(int32_t first, int32_t end, int64_t enough) const {
  int64_t count = 0;
  auto run = Holding(first);
  if (run == extents_.end()) run = extents_.lower_bound(first);
  for (; run != extents_.end() && run->first < end && count < enough; ++run) {
    count += std::min(run->first + run->second, end) - std::max(run->first, first);
  }
  return std::min(count, enough);
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
  if (count <= 1 || longest_[1] < count) return extents_.begin();
  const size_t places = longest_.size() / 2;
  size_t i = 1;
  while (i < places) i = 2 * i + (longest_[2 * i] < count);
  return extents_.find(static_cast<int32_t>(i - places));
}

void ExtentSet::TakeFrom(Extents::iterator extent, int64_t count, std::vector<int32_t>& taken) {
  const auto [start, length] = *extent;
  for (int64_t i = 0; i < count; ++i) taken.push_back(static_cast<int32_t>(start + i));
  Erase(extent);
  if (count < length) Add(static_cast<int32_t>(start + count), static_cast<int32_t>(length - count));
  size_ -= count;
}

void ExtentSet::Insert(int32_t first, int32_t count) {
  auto next = extents_.lower_bound(first);
  CHECK(next == extents_.end() || next->first - first >= count) << "place " << next->first << " is in the set already";
  int32_t start = first, length = count;
  if (next != extents_.end() && next->first - first == count) {
    length += next->second;
    next = Erase(next);
  }
  if (next != extents_.begin()) {
    const auto before = std::prev(next);
    CHECK_LE(before->second, first - before->first) << "place " << first << " is in the set already";
    if (before->second == first - before->first) {
      start = before->first;
      length += before->second;
      Erase(before);
    }
  }
  Add(start, length);
  size_ += count;
}

void ExtentSet::Remove(int32_t first, int32_t count) {
  CHECK(Covers(first, count)) << "places " << first << " to " << first + count - 1 << " are not all in the set";
  const auto run = Holding(first);
  const auto [start, length] = *run;
  Erase(run);
  if (first + count < start + length) Add(first + count, start + length - first - count);
  if (start < first) Add(start, first - start);
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
    run = Erase(run);
  }
  Insert(start, end - start);
}

}  // namespace swiftcache::engine::kv
