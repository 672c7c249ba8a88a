// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/free_extents.h"

#include <algorithm>
#include <iterator>

#include "glog/logging.h"

namespace swiftcache::engine::kv {

FreeExtents::FreeExtents(int64_t num_blocks) : size_(num_blocks) {
  if (num_blocks > 0) extents_.emplace(0, static_cast<int32_t>(num_blocks));
}

std::vector<BlockId> FreeExtents::Take(int64_t count, std::optional<BlockId> after) {
  CHECK_LE(count, size_);
  std::vector<BlockId> taken;
  taken.reserve(count);
  if (after) {
    const auto next = extents_.find(after->value() + 1);
    if (next != extents_.end()) TakeFrom(next, std::min<int64_t>(count, next->second), taken);
  }
  while (static_cast<int64_t>(taken.size()) < count) {
    const int64_t rest = count - static_cast<int64_t>(taken.size());
    const auto extent = FirstOfLength(rest);
    TakeFrom(extent, std::min<int64_t>(rest, extent->second), taken);
  }
  return taken;
}

// The lowest extent of at least `count` blocks, else the lowest of all.
FreeExtents::Extents::iterator FreeExtents::FirstOfLength(int64_t count) {
  const auto found = std::find_if(extents_.begin(), extents_.end(), [count](auto& e) { return e.second >= count; });
  return found != extents_.end() ? found : extents_.begin();
}

void FreeExtents::TakeFrom(Extents::iterator extent, int64_t count, std::vector<BlockId>& taken) {
  const auto [start, length] = *extent;
  for (int64_t i = 0; i < count; ++i) taken.emplace_back(static_cast<int32_t>(start + i));
  const auto behind = extents_.erase(extent);
  if (count < length) extents_.emplace_hint(behind, start + count, length - count);
  size_ -= count;
}

void FreeExtents::Give(BlockId id) {
  const int32_t block = id.value();
  auto next = extents_.lower_bound(block);
  CHECK(next == extents_.end() || next->first > block) << "block " << block << " is free already";
  int32_t start = block, length = 1;
  if (next != extents_.end() && next->first == block + 1) {
    length += next->second;
    next = extents_.erase(next);
  }
  if (next != extents_.begin()) {
    const auto before = std::prev(next);
    CHECK_LE(before->first + before->second, block) << "block " << block << " is free already";
    if (before->first + before->second == block) {
      start = before->first;
      length += before->second;
      extents_.erase(before);
    }
  }
  extents_.emplace(start, length);
  ++size_;
}

}  // namespace swiftcache::engine::kv
