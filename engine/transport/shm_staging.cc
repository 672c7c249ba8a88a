// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_staging.h"

#include <algorithm>

namespace swiftcache::engine::transport {

std::optional<int64_t> ShmStagingRing::Push(int64_t bytes) {
  const std::optional<int64_t> offset = Find(bytes);
  if (offset) runs_.push_back({.begin = *offset, .end = *offset + bytes});
  return offset;
}

void ShmStagingRing::Free(int64_t offset) {
  std::find_if(runs_.begin(), runs_.end(), [&](const Run& run) { return run.begin == offset; })->free = true;
  while (!runs_.empty() && runs_.front().free) runs_.pop_front();
}

std::optional<int64_t> ShmStagingRing::Find(int64_t bytes) const {
  const int64_t oldest = runs_.empty() ? 0 : runs_.front().begin;
  const int64_t next = runs_.empty() ? 0 : runs_.back().end;
  const bool wrapped = !runs_.empty() && runs_.back().begin < oldest;
  if (bytes <= (wrapped ? oldest : bytes_) - next) return next;
  if (!wrapped && bytes <= oldest) return 0;
  return std::nullopt;
}

}  // namespace swiftcache::engine::transport
